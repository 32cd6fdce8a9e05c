"""Pairs of kernels, the second of each with a planted cause of slowness, for a profiler:

    ncu --clock-control none -k regex:plant --csv --page raw --section MemoryWorkloadAnalysis \
        --section MemoryWorkloadAnalysis_Tables --section Occupancy --section WarpStateStats --section LaunchStats \
        --section SpeedOfLight --section ComputeWorkloadAnalysis python plants.py

`ncu-h200.csv` is what it printed on an H200 (Nsight Compute 2025.3.1, driver 580.159.04, torch 2.11.0, triton 3.6.0,
2026-11-28), of 1,148 columns those that tell the causes. Clocks were left as they were.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def plant_once(x, y, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@triton.jit
def plant_twice(x, y, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def plant_rows(x, out, n, B: tl.constexpr):
    at = tl.arange(0, B)
    values = tl.load(x + tl.program_id(0) * n + at, mask=at < n, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(out + tl.program_id(0) * n + at, powers / tl.sum(powers, 0), mask=at < n)


@triton.jit
def plant_dot(a, b, c, K, M: tl.constexpr, N: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    k = tl.arange(0, STEP)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, K, STEP):
        left = tl.load(a + row[:, None] * K + start + k[None, :])
        total = tl.dot(left, tl.load(b + (start + k)[:, None] * 4096 + column[None, :]), total)
    tl.store(c + row[:, None] * 4096 + column[None, :], total.to(tl.bfloat16))


def main() -> None:
    elements = 2**26
    x, y, out = (torch.randn(elements, device="cuda") for _ in range(3))
    plant_once[(elements // 1024,)](x, y, out, elements, B=1024)
    plant_twice[(elements // 1024,)](x, y, out, elements, B=1024)
    rows, result = x.view(8192, 8192), torch.empty(8192, 8192, device="cuda")
    plant_rows[(8192,)](rows, result, 8192, B=8192, num_warps=16)
    plant_rows[(8192,)](rows, result, 8192, B=8192, num_warps=4, maxnreg=64)  # It spills.
    a, b, c = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    plant_dot[(32, 32)](a, b, c, 4096, M=128, N=128, STEP=32, num_warps=8, num_stages=2)
    plant_dot[(32, 32)](a, b, c, 4096, M=128, N=128, STEP=64, num_warps=8, num_stages=5)  # One block fits, not two.
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
