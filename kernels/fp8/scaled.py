"""Grouped matmuls of scaled fp8 operands: ours, torch's grouped one, a loop of torch's row-wise one, or emulation.

Operators `perfguard_kernels::fp8_matmul_2d3d` (forward and dgrad) and `perfguard_kernels::fp8_matmul_2d2d` (wgrad),
as kernels.md section 2 has them; the recipe is that of PyTorch's `_scaled_grouped_mm` and of torchao's row-wise
MoE training. Scales come as their reciprocals (`inverse` of the quantisers' operators), which are exact as scales are
powers of two, and which every way multiplies by.

What the library wants stays in here: widths that are multiples of 16 (codes are copied to zero-filled buffers, results
sliced), fewer than 1024 groups (calls are split), rows of no group and groups of no row written as zero.

Which way: the first of the architecture's (`ORDER`) of which a small call gives right numbers, groups of 1, 7, 15 and
17 rows included, else `emulation`; tried once a device and dtype (`probe`). A CPU emulates. An accurate wgrad of large
matrices (`LARGE_WGRAD`) takes `grouped` where it works, even where `triton` does. `triton` (`products.py`) and
`grouped` read nothing of the device; the other two read offs on the host.

Shape suffixes: R rows, K contraction and N columns of `2d3d`; N rows, P (padded tokens) contraction and K columns of
`2d2d`; G groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from kernels.arguments import require_valid_offs
from kernels.fp8 import reference
from kernels.fp8.arguments import ALIGNMENT
from kernels.grouped.library import clear_groups, clear_rows
from kernels.hardware import arch_of, default_fp8_dtype, hardware_of
from kernels.jit import path_of, triton
from kernels.launch import operator, without_autocast

if triton is not None:
    from triton.errors import TritonError

    from kernels.fp8 import launch_products
else:  # torch's matmuls run
    launch_products, TritonError = None, RuntimeError  # type: ignore[assignment,misc]

Backend = Literal["triton", "grouped", "loop", "emulation"]
Matmul = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]  # a, b, 1 / scale of a, of b, offs
Product = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # of one group: a, b, 1 / scale of a as a column, of b
BACKENDS: tuple[Backend, ...] = get_args(Backend)
MAX_GROUPS = 1023  # of one call of torch's grouped matmul
# What is tried before emulation. Ours is tuned for Hopper alone. Where torch refuses its grouped matmul on sm_100 ours
# comes before the loop, which reads offs on the host in each pass.
ORDER: dict[str, tuple[Backend, ...]] = {
    "sm_90": ("triton", "grouped", "loop"),
    "sm_100": ("grouped", "triton", "loop"),
}
_USUAL: tuple[Backend, ...] = ("grouped", "loop")
# Values of one group's gradient from which on an accurate wgrad is the library's, if it works there: ours has not been
# timed. With fast accumulation ours took 1505 us on an H200 (2026-11-22) and the library's 1653 for 16 matrices of 8192
# x 5120, 197 and 305 for 64 of 1408 x 2048, 216 and 319 for 128 of 768 x 2048, all of 512 to 1040 rows.
LARGE_WGRAD = 1 << 24


# ---- which way -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Probe:
    """The way that matmuls take on a device, that of large accurate wgrads, and why not the ones before it."""

    backend: Backend
    refusals: tuple[str, ...]
    large_wgrad: Backend


_PROBES: dict[tuple[torch.device, torch.dtype], Probe] = {}


def path(device: torch.device | str, dtype: torch.dtype | None = None) -> Backend:
    """What matmuls of this fp8 dtype (default: the device's) run on this device."""
    return probe(device, dtype).backend


def probe(device: torch.device | str, dtype: torch.dtype | None = None) -> Probe:
    """`path` with its reasons. The first call for a device and dtype runs small matmuls and reads their results."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())  # type: ignore[unreachable]
    dtype = default_fp8_dtype(device) if dtype is None else dtype
    if device.type == "cpu":
        return Probe("emulation", ("a CPU has no matrix unit for fp8",), "emulation")
    if (device, dtype) not in _PROBES:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"fp8 matmul: not yet tried on {device} with {dtype}, and it cannot be while a graph is captured; "
                "call it once before the capture"
            )
        _PROBES[device, dtype] = _try_backends(device, dtype)
    return _PROBES[device, dtype]


def _try_backends(device: torch.device, dtype: torch.dtype) -> Probe:
    refusals: list[str] = []
    for backend in ORDER.get(hardware_of(arch_of(device)).arch, _USUAL):
        reason = refusal(backend, device, dtype)
        if reason is None:
            prefers_library = backend == "triton" and refusal("grouped", device, dtype) is None
            return Probe(backend, tuple(refusals), "grouped" if prefers_library else backend)
        refusals.append(f"{backend}: {reason}")
    return Probe("emulation", tuple(refusals), "emulation")


def refusal(backend: Backend, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why this way does not work there, or None: right numbers in both matmuls, for groups of any size."""
    if backend == "triton" and (launch_products is None or path_of(launch_products.multiply_rows, device) == "eager"):
        return "Triton cannot run there"
    # Nothing of the user's: neither the state of random numbers, nor default dtype and device, nor autocast.
    with torch.device("cpu"), without_autocast():
        return _refusal(backend, device, dtype)


def _refusal(backend: Backend, device: torch.device, dtype: torch.dtype) -> str | None:
    generator = torch.Generator().manual_seed(0)
    ends = torch.tensor([1, 8, 8, 23, 40], dtype=torch.int32)  # groups of 1, 7, 0, 15 and 17 rows
    shapes = ((43, 32), (5, 32, 48), (43, 48))
    a_RK, b_EKN, grad_RN = (torch.randn(shape, generator=generator, dtype=torch.float32) for shape in shapes)
    options: dict[str, Any] = {"dtype": dtype, "power_of_two": True}
    codes_a, scales_a = reference.quantize_rowwise(a_RK, **options)
    codes_b, scales_b = reference.quantize_colwise_3d(b_EKN, **options)
    forward = (codes_a, 1 / scales_a, codes_b, 1 / scales_b.squeeze(1), ends)
    codes1, scales1, codes2, scales2, padded_ends = reference.quantize_colwise_per_group_dual(
        grad_RN, a_RK, ends, alignment=ALIGNMENT, **options
    )
    wgrad = (codes1.t(), 1 / scales1, codes2, 1 / scales2, padded_ends)
    cases: tuple[tuple[Callable[..., Tensor], tuple[Tensor, ...]], ...] = ((_run_2d3d, forward), (_run_2d2d, wgrad))
    for matmul, operands in cases:
        expected = matmul(*operands, True, "emulation").double()
        try:
            got = matmul(*(operand.to(device) for operand in operands), True, backend).cpu().double()
        except torch.OutOfMemoryError:
            raise  # says nothing about the way
        except (AttributeError, RuntimeError, ValueError, TritonError) as error:
            lines = str(error).splitlines() or [type(error).__name__]
            return lines[0]
        off = ((got - expected).norm() / expected.norm()).item()
        if not off < 0.01:  # one rounding to bf16 is 0.0017; a wrong format is off by a factor
            return f"results are off by {off:.2g} of their norm in {matmul.__name__.removeprefix('_run_')}"
    return None


def _resolve(backend: str | None, codes: Tensor) -> str:
    if backend is None:
        return path(codes.device, codes.dtype)
    if backend not in BACKENDS:
        raise ValueError(f"backend: is {backend!r}; may be None or {', '.join(BACKENDS)}")
    return backend


# ---- one group -----------------------------------------------------------------------------------------------


def emulated(a: Tensor, b: Tensor, a_inverse: Tensor, b_inverse: Tensor) -> Tensor:
    sums = a.float() @ b.float()
    return sums * a_inverse * b_inverse


def by_torch(a: Tensor, b: Tensor, a_inverse: Tensor, b_inverse: Tensor, *, fast_accum: bool) -> Tensor:
    # Not every row-wise matmul looks at leading strides; scales in fresh memory are aligned wherever a group begins.
    operands = a.contiguous(), b.t().contiguous().t(), a_inverse.clone(), b_inverse[None]
    return torch._scaled_mm(*operands, out_dtype=torch.bfloat16, use_fast_accum=fast_accum)


def grouped_by_torch(
    a: Tensor, b: Tensor, a_inverse: Tensor, b_inverse: Tensor, ends: Tensor, *, fast_accum: bool
) -> Tensor:
    """All groups at once; of "2d2d" both scales are one vector."""
    if b.ndim == 2:
        a_inverse, b_inverse = a_inverse.flatten(), b_inverse.flatten()
    return torch._scaled_grouped_mm(
        a, b, a_inverse, b_inverse, offs=ends, out_dtype=torch.bfloat16, use_fast_accum=fast_accum
    )


# ---- forward and dgrad ---------------------------------------------------------------------------------------


@operator("fp8_matmul_2d3d")
def matmul_2d3d(
    a: Tensor, a_inverse: Tensor, b: Tensor, b_inverse: Tensor, offs: Tensor, fast_accum: bool, backend: str | None
) -> Tensor:
    """a (R, K) fp8 row-major, a_inverse (R, 1), b (G, K, N) fp8 strides (K * N, 1, K), b_inverse (G, N), offs (G,)
    -> (R, N) bf16, contiguous: rows of group g times b[g], rows past `offs[-1]` zero."""
    return _run_2d3d(a, a_inverse, b, b_inverse, offs.contiguous(), fast_accum, _resolve(backend, a))


@matmul_2d3d.register_fake
def _fake_2d3d(a: Tensor, a_inverse: Tensor, b: Tensor, *_: Any) -> Tensor:
    return a.new_empty((a.shape[0], b.shape[2]), dtype=torch.bfloat16)


def _run_2d3d(
    a_RK: Tensor, a_inverse: Tensor, b_GKN: Tensor, b_inverse_GN: Tensor, offs: Tensor, fast_accum: bool, backend: str
) -> Tensor:
    rows, width = a_RK.shape[0], b_GKN.shape[2]
    if 0 in (rows, width, *b_GKN.shape):
        return a_RK.new_zeros((rows, width), dtype=torch.bfloat16)
    a_inverse_R = a_inverse.flatten()
    if backend == "emulation":
        return by_group_2d3d(emulated, a_RK, b_GKN, a_inverse_R, b_inverse_GN, offs)
    a_RK = _widened(a_RK, 1)
    b_GKN = _widened(_widened(b_GKN.mT, 2), 1).mT
    b_inverse_GN = _widened(b_inverse_GN, 1)
    if backend == "triton":
        out_RN = launch_products.rows_product(a_RK, b_GKN.mT, a_inverse_R, b_inverse_GN, offs, fast_accum)
    elif backend == "grouped":
        grouped = partial(grouped_by_torch, fast_accum=fast_accum)
        out_RN = in_parts_2d3d(grouped, a_RK, b_GKN, a_inverse_R, b_inverse_GN, offs)
        clear_rows(out_RN, offs)
    else:
        product = partial(by_torch, fast_accum=fast_accum)
        out_RN = by_group_2d3d(product, a_RK, b_GKN, a_inverse_R, b_inverse_GN, offs)
    return out_RN if out_RN.shape[1] == width else out_RN[:, :width].contiguous()


def by_group_2d3d(
    product: Product, a_RK: Tensor, b_GKN: Tensor, a_inverse_R: Tensor, b_inverse_GN: Tensor, offs: Tensor
) -> Tensor:
    out_RN = a_RK.new_zeros((a_RK.shape[0], b_GKN.shape[2]), dtype=torch.bfloat16)
    ends = offs.tolist()
    require_valid_offs(ends, a_RK.shape[0])
    for group, (start, end) in enumerate(pairwise([0, *ends])):
        if start < end:
            a_inverse = a_inverse_R[start:end, None]
            out_RN[start:end] = product(a_RK[start:end], b_GKN[group], a_inverse, b_inverse_GN[group])
    return out_RN


def in_parts_2d3d(
    matmul: Matmul, a: Tensor, b: Tensor, a_inverse: Tensor, b_inverse: Tensor, offs: Tensor, limit: int = MAX_GROUPS
) -> Tensor:
    """`matmul` in calls of at most `limit` groups.

    A later call begins with the last group of the one before it, which there covers all earlier rows: they are
    computed for nothing and left out. So nobody has to know on the host where a part begins.
    """
    groups = offs.shape[0]
    if groups <= limit:
        return matmul(a, b, a_inverse, b_inverse, offs)
    out_RN = matmul(a, b[:limit], a_inverse, b_inverse[:limit], offs[:limit])
    rows_R = torch.arange(a.shape[0], device=a.device)
    for first in range(limit, groups, limit - 1):
        part = slice(first - 1, min(groups, first + limit - 1))
        part_RN = matmul(a, b[part], a_inverse, b_inverse[part], offs[part])
        out_RN = torch.where((rows_R >= offs[first - 1])[:, None], part_RN, out_RN)
    return out_RN


# ---- wgrad ---------------------------------------------------------------------------------------------------


@operator("fp8_matmul_2d2d")
def matmul_2d2d(
    a: Tensor, a_inverse: Tensor, b: Tensor, b_inverse: Tensor, offs: Tensor, fast_accum: bool, backend: str | None
) -> Tensor:
    """a (N, P) fp8 row-major, a_inverse (G * N,), b (P, K) fp8 strides (1, P), b_inverse (G * K,), offs (G,), whose
    entries and P are multiples of 16 -> (G, N, K) bf16, contiguous: the contraction of each group, zero for none."""
    if backend is None and not fast_accum and a.shape[0] * b.shape[1] >= LARGE_WGRAD:
        backend = probe(a.device, a.dtype).large_wgrad
    return _run_2d2d(a, a_inverse, b, b_inverse, offs.contiguous(), fast_accum, _resolve(backend, a))


@matmul_2d2d.register_fake
def _fake_2d2d(a: Tensor, a_inverse: Tensor, b: Tensor, b_inverse: Tensor, offs: Tensor, *_: Any) -> Tensor:
    return a.new_empty((offs.shape[0], a.shape[0], b.shape[1]), dtype=torch.bfloat16)


def _run_2d2d(
    a_NP: Tensor, a_inverse: Tensor, b_PK: Tensor, b_inverse: Tensor, offs: Tensor, fast_accum: bool, backend: str
) -> Tensor:
    groups, height, width = offs.shape[0], a_NP.shape[0], b_PK.shape[1]
    if 0 in (groups, width, *a_NP.shape):
        return a_NP.new_zeros((groups, height, width), dtype=torch.bfloat16)
    a_inverse_GN, b_inverse_GK = a_inverse.view(groups, height), b_inverse.view(groups, width)
    if backend == "emulation":
        return by_group_2d2d(emulated, a_NP, b_PK, a_inverse_GN, b_inverse_GK, offs)
    a_NP, b_PK = _widened(a_NP, 0), _widened(b_PK.t(), 0).t()
    a_inverse_GN, b_inverse_GK = _widened(a_inverse_GN, 1), _widened(b_inverse_GK, 1)
    if backend == "triton":
        out_GNK = launch_products.groups_product(a_NP, b_PK.t(), a_inverse_GN, b_inverse_GK, offs, fast_accum)
    elif backend == "grouped":
        grouped = partial(grouped_by_torch, fast_accum=fast_accum)
        out_GNK = in_parts_2d2d(grouped, a_NP, b_PK, a_inverse_GN, b_inverse_GK, offs)
        clear_groups(out_GNK, offs)
    else:
        product = partial(by_torch, fast_accum=fast_accum)
        out_GNK = by_group_2d2d(product, a_NP, b_PK, a_inverse_GN, b_inverse_GK, offs)
    return out_GNK if out_GNK.shape[1:] == (height, width) else out_GNK[:, :height, :width].contiguous()


def by_group_2d2d(
    product: Product, a_NP: Tensor, b_PK: Tensor, a_inverse_GN: Tensor, b_inverse_GK: Tensor, offs: Tensor
) -> Tensor:
    out_GNK = a_NP.new_zeros((offs.shape[0], a_NP.shape[0], b_PK.shape[1]), dtype=torch.bfloat16)
    ends = offs.tolist()
    require_valid_offs(ends, b_PK.shape[0])
    for group, (start, end) in enumerate(pairwise([0, *ends])):
        if start < end:
            a_inverse = a_inverse_GN[group][:, None]
            out_GNK[group] = product(a_NP[:, start:end], b_PK[start:end], a_inverse, b_inverse_GK[group])
    return out_GNK


def in_parts_2d2d(
    matmul: Matmul, a: Tensor, b: Tensor, a_inverse: Tensor, b_inverse: Tensor, offs: Tensor, limit: int = MAX_GROUPS
) -> Tensor:
    """`matmul` in calls of at most `limit` groups; a later one begins with a group that covers all earlier rows."""
    groups = offs.shape[0]
    if groups <= limit:
        return matmul(a, b, a_inverse, b_inverse, offs)
    parts = [matmul(a, b, a_inverse[:limit], b_inverse[:limit], offs[:limit])]
    for first in range(limit, groups, limit - 1):
        part = slice(first - 1, min(groups, first + limit - 1))
        parts.append(matmul(a, b, a_inverse[part], b_inverse[part], offs[part])[1:])
    return torch.cat(parts)


# ---- both ----------------------------------------------------------------------------------------------------


def _widened(x: Tensor, dim: int) -> Tensor:
    """x, or a copy that is zero-filled along `dim` to the next multiple of 16; contiguous then."""
    missing = -x.shape[dim] % ALIGNMENT
    if missing == 0:
        return x
    shape = [size + missing if axis == dim else size for axis, size in enumerate(x.shape)]
    as_bytes = x.view(torch.uint8) if x.dtype.itemsize == 1 else x  # zeros and copies of fp8 are not everywhere
    wide = as_bytes.new_zeros(shape)
    wide.narrow(dim, 0, x.shape[dim]).copy_(as_bytes)
    return wide.view(x.dtype)
