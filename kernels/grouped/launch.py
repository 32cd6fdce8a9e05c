"""From tensors to launches: layouts, descriptors, grids. The only caller of the Triton kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.grouped.configs import Config, Form, candidates
from kernels.grouped.groups import multiply_groups
from kernels.grouped.rows import multiply_rows
from kernels.grouped.zero import clear_empty_groups, clear_unused_rows
from kernels.hardware import arch_of
from kernels.paths import on

_CLEAR_BLOCK = 4096  # elements a program clears at a time


def rows_product(a: Tensor, b: Tensor, offs: Tensor, out: Tensor, candidate: int | None) -> None:
    """a (R, K), b (E, K, N), offs (E,) -> out (R, N) contiguous; any strides in."""
    rows, inner = a.shape
    outer = b.shape[2]
    if out.numel() == 0:
        return
    b_transposed = not is_aligned(b)
    # A group may start at any row, and the copy engine at whole units only: rows may not lie side by side.
    aligned = is_aligned(a) and (not b_transposed or is_aligned(b.mT))
    config = _pick(a, "rows", outer, aligned, candidate)
    described = config.descriptors and aligned
    tile_DW = [config.depth, config.width]
    b_tile = [1, *(reversed(tile_DW) if b_transposed else tile_DW)]
    with on(a):
        multiply_rows[(programs_of(a.device, config),)](
            a,
            b,
            _descriptor(a, [config.height, config.depth]) if described else None,
            _descriptor(b.mT if b_transposed else b, b_tile) if described else None,
            offs.contiguous(),
            out,
            offs.numel(),
            rows,
            inner,
            outer,
            *a.stride(),
            *b.stride(),
            GROUPS=triton.next_power_of_2(offs.numel() + 1),
            EVEN=inner % config.depth == 0,
            B_TRANSPOSED=described and b_transposed,
            **_constants(config, described),
        )


def groups_product(a: Tensor, b: Tensor, offs: Tensor, out: Tensor, candidate: int | None) -> None:
    """a (K, R), b (R, N), offs (E,) -> out (E, K, N) contiguous; any strides in."""
    rows, outer = b.shape
    if out.numel() == 0:
        return
    aligned = is_aligned(a.t()) and is_aligned(b)
    config = _pick(a, "groups", outer, aligned, candidate)
    if config.specialised:
        _specialised_groups_product(a, b, offs, out, config)
        return
    described = config.descriptors and aligned
    with on(a):
        multiply_groups[(programs_of(a.device, config),)](
            a,
            b,
            _descriptor(a.t(), [config.depth, config.height]) if described else None,
            _descriptor(b, [config.depth, config.width]) if described else None,
            offs.contiguous(),
            out,
            offs.numel(),
            rows,
            a.shape[0],
            outer,
            *a.stride(),
            *b.stride(),
            **_constants(config, described),
        )


def _specialised_groups_product(a: Tensor, b: Tensor, offs: Tensor, out: Tensor, config: Config) -> None:
    """Operands of 16 bits and an output whose rows are whole units."""
    from kernels.grouped import specialised  # where it runs: nobody else needs Gluon

    def tiles(x: Tensor, tile: list[int]) -> object:
        return specialised.Descriptor(x, list(x.shape), _strides(x), tile, specialised.layout_16_bit(len(tile)))

    half = config.height // 2
    with on(a):
        specialised.multiply_groups[(programs_of(a.device, config),)](
            tiles(a.t(), [config.depth, half]),
            tiles(b, [config.depth, config.width]),
            tiles(out, [1, half, config.width]),
            offs.contiguous(),
            offs.numel(),
            b.shape[0],
            a.shape[0],
            b.shape[1],
            BAND=config.band,
            STAGES=config.stages,
            num_warps=config.warps,
        )


def clear_rows(out: Tensor, offs: Tensor) -> None:
    """out (R, N) contiguous: zeros from row offs[-1] on."""
    rows, outer = out.shape
    with on(out):
        clear_unused_rows[(_processors(out.device),)](
            out, offs.contiguous(), offs.numel(), rows, outer, BLOCK=_CLEAR_BLOCK
        )


def clear_groups(out: Tensor, offs: Tensor) -> None:
    """out (E, K, N) contiguous: zeros in every group that has no rows."""
    groups, inner, outer = out.shape
    with on(out):
        clear_empty_groups[(_processors(out.device),)](
            out, offs.contiguous(), groups, inner * outer, BLOCK=_CLEAR_BLOCK
        )


def _constants(config: Config, described: bool) -> dict[str, object]:
    return {
        "H": config.height,
        "W": config.width,
        "D": config.depth,
        "BAND": config.band,
        "DESCRIBED": described,
        "FLATTEN": config.flatten,
        "EMULATE": config.emulate,
        "num_warps": config.warps,
        "num_stages": config.stages,
    }


def is_aligned(x: Tensor) -> bool:
    """Whether the last dimension is contiguous and all else starts on 16 bytes, without overlapping."""
    unit = 16 // x.element_size()
    # The stride of a dimension of size 1 is never used, and may be anything.
    others = [stride for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size > 1]
    return (
        x.stride(-1) == 1
        and all(stride % unit == 0 and stride >= x.shape[-1] for stride in others)
        and x.data_ptr() % 16 == 0
        and x.numel() > 0
    )


def _descriptor(x: Tensor, tile: list[int]) -> TensorDescriptor:
    """Tiles of `x`, whose memory has whole units."""
    return TensorDescriptor(x, list(x.shape), _strides(x), tile)


def _strides(x: Tensor) -> list[int]:
    """Those of `x`, told anew where torch's may be anything: of a dimension of size 1."""
    unit = 16 // x.element_size()
    unused = -(-x.shape[-1] // unit) * unit
    strides = [stride if size > 1 else unused for size, stride in zip(x.shape, x.stride(), strict=True)]
    strides[-1] = 1
    return strides


def _processors(device: torch.device) -> int:
    """Multiprocessors (compute units) of the device; the interpreter needs no more than two programs."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).multi_processor_count)
    if device.type == "xpu":
        return int(torch.xpu.get_device_properties(device).gpu_subslice_count)
    return 2


def programs_of(device: torch.device, config: Config) -> int:
    """Programs of a persistent launch."""
    return config.programs if device.type == "cpu" else config.programs * _processors(device)


def _pick(a: Tensor, form: Form, outer: int, aligned: bool, candidate: int | None) -> Config:
    configs: Sequence[Config] = candidates(arch_of(a.device), form, a.element_size(), outer, aligned)
    if candidate is None:
        return configs[0]
    if not 0 <= candidate < len(configs):
        raise ValueError(f"candidate: is {candidate}; choose 0 to {len(configs) - 1} here, or None for the default")
    return configs[candidate]
