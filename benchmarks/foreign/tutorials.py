"""A softmax and matrix products, as Triton's tutorials have them: of one configuration, and chosen from eight."""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(out_ptr, x_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + at, mask=at < columns, other=-float("inf"))
    x = tl.exp(x - tl.max(x, 0))
    tl.store(out_ptr + row * columns + at, x / tl.sum(x, 0), mask=at < columns)


def softmax(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](out, x, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=8)
    return out


@triton.jit
def matmul_kernel(  # noqa: PLR0913  (a kernel takes its sizes one by one)
    a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr
):
    pid = tl.program_id(0)
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = pid // (GROUP * columns)
    first = group * GROUP
    size = min(rows - first, GROUP)
    m = first + (pid % (GROUP * columns)) % size
    n = (pid % (GROUP * columns)) // size
    am = m * BM + tl.arange(0, BM)
    bn = n * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    a = a_ptr + am[:, None] * K + k[None, :]
    b = b_ptr + k[:, None] * N + bn[None, :]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(tl.cdiv(K, BK)):
        left = K - step * BK
        x = tl.load(a, mask=(am[:, None] < M) & (k[None, :] < left), other=0.0)
        y = tl.load(b, mask=(k[:, None] < left) & (bn[None, :] < N), other=0.0)
        total = tl.dot(x, y, total)
        a += BK
        b += BK * N
    out = c_ptr + am[:, None] * N + bn[None, :]
    tl.store(out, total.to(c_ptr.dtype.element_ty), mask=(am[:, None] < M) & (bn[None, :] < N))


def grid_of(m, n):
    return lambda meta: (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),)


def matmul(a, b):
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    matmul_kernel[grid_of(m, n)](a, b, c, m, n, k, BM=128, BN=128, BK=64, GROUP=8, num_warps=8, num_stages=3)
    return c


CONFIGS = [
    triton.Config({"BM": bm, "BN": bn, "BK": bk, "GROUP": 8}, num_warps=warps, num_stages=stages)
    for bm, bn, bk, warps, stages in [
        (128, 256, 64, 8, 3),
        (64, 256, 32, 4, 4),
        (128, 128, 32, 4, 4),
        (128, 64, 32, 4, 4),
        (64, 128, 32, 4, 4),
        (128, 32, 32, 4, 4),
        (64, 32, 32, 2, 5),
        (128, 128, 64, 8, 4),
    ]
]
tuned_kernel = triton.autotune(CONFIGS, key=["M", "N", "K"])(matmul_kernel)


def tuned_matmul(a, b):
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    tuned_kernel[grid_of(m, n)](a, b, c, m, n, k)
    return c
