"""Zero what a grouped matmul leaves unwritten, without the host reading where that is.

torch's grouped matmul writes rows of groups only, and promises nothing about a contraction over no rows. A full pass
over the output would cost as much as a quantiser; these programs look at offs and, usually, leave.

Shape suffixes: R rows, N columns, G groups, P elements of one group's matrix.
"""

from __future__ import annotations

import torch

from kernels.paths import on, path_of

try:
    import triton
    import triton.language as tl
except ImportError as error:  # without Triton a full pass does it
    if error.name is None or error.name.split(".")[0] != "triton":
        raise
    triton = None

BLOCK = 4096  # elements a program writes at a time
PROGRAMS = 512  # over the tail, which is usually short: enough to fill a large chip
PARTS = 32  # programs a group
zero_tail_kernel = zero_empty_kernel = None

if triton is not None:

    @triton.jit
    def zero_tail_kernel(out_ptr, offs_ptr, groups, rows, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        """out (rows, width) contiguous: zero from row offs[-1] on."""
        end = tl.minimum(tl.maximum(tl.load(offs_ptr + groups - 1), 0), rows)
        stop = tl.zeros([], tl.int64) + rows
        stop *= width
        at = end.to(tl.int64) * width + tl.program_id(0).to(tl.int64) * BLOCK
        while at < stop:
            position = at + tl.arange(0, BLOCK)
            zeros = tl.zeros((BLOCK,), out_ptr.dtype.element_ty)
            tl.store(out_ptr + position, zeros, mask=position < stop)
            at += tl.num_programs(0).to(tl.int64) * BLOCK

    @triton.jit
    def zero_empty_kernel(out_ptr, offs_ptr, elements, PARTS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        """out (groups, elements) contiguous: zero what belongs to groups without rows."""
        group = tl.program_id(0) // PARTS
        start = tl.load(offs_ptr + group - 1, mask=group > 0, other=0)
        end = tl.load(offs_ptr + group)
        if end > start:
            return
        stop = tl.zeros([], tl.int64) + elements
        group_ptr = out_ptr + group.to(tl.int64) * stop
        at = (tl.program_id(0) % PARTS).to(tl.int64) * BLOCK
        while at < stop:
            position = at + tl.arange(0, BLOCK)
            zeros = tl.zeros((BLOCK,), out_ptr.dtype.element_ty)
            tl.store(group_ptr + position, zeros, mask=position < stop)
            at += PARTS * BLOCK


def zero_tail(out_RN: torch.Tensor, offs_G: torch.Tensor) -> None:
    """Rows from `offs[-1]` on become zero, in place. `out` is contiguous, there is a group."""
    rows, width = out_RN.shape
    if out_RN.numel() == 0:
        return
    if path_of(zero_tail_kernel, out_RN.device) == "eager":
        is_tail_R = torch.arange(rows, device=out_RN.device) >= offs_G[-1]
        out_RN.masked_fill_(is_tail_R[:, None], 0)
        return
    with on(out_RN):
        programs = min(PROGRAMS, triton.cdiv(out_RN.numel(), BLOCK))
        zero_tail_kernel[(programs,)](out_RN, offs_G, offs_G.numel(), rows, width, BLOCK=BLOCK)


def zero_empty(out_GNK: torch.Tensor, offs_G: torch.Tensor) -> None:
    """The matrices of groups without rows become zero, in place. `out` is contiguous."""
    groups = out_GNK.shape[0]
    if out_GNK.numel() == 0:
        return
    if path_of(zero_empty_kernel, out_GNK.device) == "eager":
        is_empty_G = torch.diff(offs_G, prepend=offs_G.new_zeros(1)) <= 0
        out_GNK.masked_fill_(is_empty_G[:, None, None], 0)
        return
    with on(out_GNK):
        zero_empty_kernel[(groups * PARTS,)](out_GNK, offs_G, out_GNK[0].numel(), PARTS=PARTS, BLOCK=BLOCK)
