"""Every public operator once, then the quantisers and products over odd groups: for a tool that watches memory.

PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck python -m benchmarks.once
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from benchmarks.host import calls
from kernels import fp8, grouped

SIZES = ((37, 80, 5), (1, 16, 1), (130, 144, 9), (257, 272, 4))  # rows, width, groups


def ends(rows: int, groups: int) -> dict[str, list[int]]:
    """Where groups end, by how rows are spread: over all, all in the last group, in none."""
    draw = torch.Generator().manual_seed(rows)
    cuts = sorted(torch.randint(0, rows + 1, (groups - 1,), generator=draw).tolist())
    return {"random": [*cuts, rows], "hot": [0] * (groups - 1) + [rows], "none": [0] * groups}


def odd(rows: int, width: int, offs: Tensor) -> None:
    device, groups = offs.device, len(offs)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, dtype=torch.bfloat16)

    x, y, w = normal(rows, width), normal(rows, 2 * width), normal(groups, 2 * width, width)
    fp8.quantize_rowwise(x)
    fp8.quantize_rowwise_per_group(x.t(), offs)
    fp8.quantize_colwise_per_group(x, offs)
    fp8.quantize_colwise_per_group(x, offs, alignment=16)
    fp8.quantize_colwise_per_group_dual(x, y, offs)
    fp8.quantize_colwise_3d(w.mT)
    fp8.quantize_transpose_3d_atomic(w.mT)
    fp8.quantize_transpose_3d_reduction(w.mT)
    x.requires_grad_()
    w.requires_grad_()
    for product in (partial(grouped.grouped_mm, impl="triton"), fp8.grouped_mm):
        out = product(x, w.mT, offs)
        torch.autograd.grad(out, (x, w), torch.ones_like(out))


def main() -> None:
    device = torch.device("cuda", 0)
    for name, call in calls(device).items():
        call()
        torch.cuda.synchronize()
        print(name, flush=True)
    for rows, width, groups in SIZES:
        for kind, cuts in ends(rows, groups).items():
            odd(rows, width, torch.tensor(cuts, dtype=torch.int32, device=device))
            torch.cuda.synchronize()
            print(f"{rows}x{width}, {groups} groups, {kind}", flush=True)


if __name__ == "__main__":
    main()
