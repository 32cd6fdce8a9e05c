"""Grouped products with block scales, and rows that are permuted and padded: every split, codes, memory, compilation.

Shape suffixes: M tokens, K inner width, N outer width, E experts.
"""

from __future__ import annotations

import importlib
import re
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from kernels import block_scaled, fp8
from kernels.block_scaled import permute_and_pad, reference, unpermute
from kernels.block_scaled.reference import Coded
from kernels.fp8.inputs import LAYOUTS, far_apart
from kernels.fp8.shapes import Split, splits
from kernels.hardware import hardware_of
from tests.kernels import elsewhere
from tests.kernels.guards import guarded_allocations, no_device_waits, no_host_reads
from tests.kernels.paths import COMPILING, KernelPath, every_candidate
from tests.nursery import Nursery

pytestmark = COMPILING
module = importlib.import_module("kernels.block_scaled.grouped_mm")  # its name is that of the function
SCALINGS = pytest.mark.parametrize("scaling", ["1x128", "mx"])
RAGGED = Split("ragged", (0, 5, 0, 130, 1), unused=3)  # a block and a bit, empty groups, rows of no group
NAMES = ("out", "grad_a", "grad_w")
# Shares of the largest element. Hopper's matrix units keep about 14 bits of a sum of fp8 products until a block of 128
# leaves them (DeepSeek-V3, section 3.3.2); on an H100 the largest difference is 1.24 in 2^13.
OF_FLOAT32, OF_MATRIX_UNITS = 1e-5, 2.0**-12


def operands(split: Split, inner: int, outer: int, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Any:
    """a (M, K) and grad (M, N), NaN past the last group; w (E, N, K); offs. Rows and squares are of unlike size."""
    used = sum(split.sizes)
    a, grad = torch.randn(split.rows, inner), torch.randn(split.rows, outer)
    a *= torch.exp2(torch.randint(-6, 7, (split.rows, 1)).float())
    a[used:], grad[used:] = torch.nan, torch.nan
    w = torch.randn(split.groups, outer, inner) * torch.exp2(torch.randint(-3, 4, (split.groups, 1, 1)).float())
    drawn = a.to(device, dtype), w.to(device, dtype), grad.to(device, torch.bfloat16)
    return *drawn, split.offs(device)


def run(function: Any, a: Tensor, w: Tensor, grad: Tensor, offs: Tensor, **options: Any) -> tuple[Tensor, ...]:
    a, w = a.detach().requires_grad_(), w.detach().requires_grad_()
    out = function(a, w.mT, offs, **options)
    return out.detach(), *torch.autograd.grad(out, (a, w), grad.to(out.dtype))


def assert_close(got: tuple[Tensor, ...], true: tuple[Tensor, ...]) -> None:
    """One rounding and the order of summation apart in every row: the codes are the same."""
    for name, one, other in zip(NAMES, got, true, strict=True):
        assert one.shape == other.shape
        distance, size = (one.double() - other.double()).norm(dim=-1), other.double().norm(dim=-1)
        assert (distance <= 0.005 * size).all(), f"{name}: {(distance / size).nan_to_num().max():.3g}"


# ---------------------------------------------------------------------------------------------------
# Against the float64 reference


@SCALINGS
@pytest.mark.parametrize("split", [RAGGED, *splits(hot_rows=256)], ids=str)
def test_splits(split: Split, scaling: str, compiled_path: KernelPath) -> None:
    a, w, grad, offs = operands(split, 48, 144, compiled_path.device)
    got = run(block_scaled.grouped_mm, a, w, grad, offs, scaling=scaling)
    assert_close(got, run(reference.grouped_mm, a.double(), w.double(), grad, offs, scaling=scaling))
    used = sum(split.sizes)
    assert not got[0][used:].any()
    assert not got[1][used:].any()
    for group, size in enumerate(split.sizes):
        assert bool(got[2][group].any()) == (size > 0), f"group {group} of {size} rows"


@SCALINGS
@pytest.mark.parametrize("widths", [(144, 272), (17, 33)], ids=str)
def test_every_candidate(scaling: str, widths: tuple[int, int], triton_path: KernelPath) -> None:
    """Blocks and squares with tails, and widths that are no whole units of the copy engine."""
    a, w, grad, offs = operands(RAGGED, *widths, triton_path.device)
    true = run(reference.grouped_mm, a.double(), w.double(), grad, offs, scaling=scaling)
    for _, got in every_candidate(
        lambda number: run(block_scaled.grouped_mm, a, w, grad, offs, scaling=scaling, candidate=number)
    ):
        assert_close(got, true)
        assert not got[0][-3:].any()
        assert not got[1][-3:].any()


@pytest.mark.parametrize("widths", [(1, 7), (0, 5), (5, 0)], ids=str)
@pytest.mark.parametrize("groups", [0, 2])
def test_narrow_and_empty(widths: tuple[int, int], groups: int, kernel_path: KernelPath) -> None:
    a, w, grad, offs = operands(Split("", (3, 0)[:groups], unused=2), *widths, kernel_path.device)
    got = run(block_scaled.grouped_mm, a, w, grad, offs)
    assert_close(got, run(reference.grouped_mm, a.double(), w.double(), grad, offs))


@pytest.mark.parametrize("power_of_two", [False, True])
def test_powers_of_two_and_float32(power_of_two: bool, kernel_path: KernelPath) -> None:
    """Gradients have their input's dtype, in which they are rounded once."""
    a, w, grad, offs = operands(Split("", (9, 20)), 32, 48, kernel_path.device, torch.float32)
    got = run(block_scaled.grouped_mm, a, w, grad, offs, power_of_two=power_of_two)
    true = run(reference.grouped_mm, a.double(), w.double(), grad, offs, power_of_two=power_of_two)
    assert [each.dtype for each in got] == [torch.bfloat16, torch.float32, torch.float32]
    assert_close(got, true)
    share = OF_MATRIX_UNITS if kernel_path.name == "triton" else OF_FLOAT32
    for one, other in zip(got[1:], true[1:], strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0, atol=share * other.abs().max().item())


@SCALINGS
def test_28_db_are_kept(scaling: str, compiled_path: KernelPath) -> None:
    """Beside the unrounded product: what fp8 loses, and no more."""
    a, w, grad, offs = operands(Split("", (100, 0, 156)), 256, 192, compiled_path.device)

    def plain(a: Tensor, b_t: Tensor, offs: Tensor) -> Tensor:
        return torch.cat([a[s:e] @ b_t[g] for g, (s, e) in enumerate(pairwise([0, *offs.tolist()]))])

    true = run(plain, a.double(), w.double(), grad, offs)
    for name, one, other in zip(
        NAMES, run(block_scaled.grouped_mm, a, w, grad, offs, scaling=scaling), true, strict=True
    ):
        quality = 20 * torch.log10(other.norm() / (one.double() - other).norm())
        assert quality >= 28, f"{name}: {quality:.2f} dB"


# ---------------------------------------------------------------------------------------------------
# Codes


def shown(coded: Coded) -> tuple[Tensor, Tensor]:
    codes, scales = coded
    return codes.contiguous().view(torch.uint8), scales.float().nan_to_num(-1.0)


@SCALINGS
@pytest.mark.parametrize("layout", ["row-major", "column-major", "rows far apart", "columns far apart"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_one_pass_writes_the_codes_of_two_quantisers(
    scaling: str, layout: str, dtype: torch.dtype, triton_path: KernelPath
) -> None:
    """Bit for bit, along rows of everybody, along columns of each group; a row of zeros, and a NaN in each. What is far
    apart has offsets past 2^31."""
    if layout.endswith("apart") and triton_path.name == "triton":
        pytest.skip("needs 26 GiB of memory that nothing backs, which a CPU has")
    mx = scaling == "mx"
    x, _, _, offs = operands(RAGGED, 144, 16, triton_path.device, dtype)
    x[1], x[7, 40], x[136, 3] = 0, torch.nan, torch.inf
    if layout == "column-major":
        x = x.t().contiguous().t()
    elif layout != "row-major":
        x = far_apart(x, dim=int(layout.startswith("columns")), stride=2**24)
    columns = module._columns_of(x, offs, mx)
    rows = module._quantize(x, offs, columns, mx, False)
    quantise = fp8.quantize_mx if mx else fp8.quantize_1x128
    expected = quantise(x, round_up=True) if mx else quantise(x)
    for one, other in zip(shown(rows), shown(expected), strict=True):
        assert one.equal(other)
    for one, other in zip(shown(columns), shown(reference.quantize_columns(x, offs, mx, False)), strict=True):
        assert one.equal(other)


def test_a_column_block_begins_with_its_group() -> None:
    """A row of the group before may not be in its scale: the definition, by index."""
    x, offs = torch.randn(200, 3), torch.tensor([60, 200], dtype=torch.int32)
    codes, scales = reference.quantize_columns(x, offs, False, False)
    for start, end, place in ((0, 60, 0), (60, 188, 128), (188, 200, 256)):
        amax = x[start:end].abs().amax(0)
        torch.testing.assert_close(scales[:, place // 128], amax / fp8.FORMATS[codes.dtype].max)
        assert not codes[:, place + end - start : place + 128].float().any()


@SCALINGS
def test_nan_stays_in_its_row_and_column(scaling: str, kernel_path: KernelPath) -> None:
    a, w, grad, offs = operands(Split("", (20, 9)), 32, 48, kernel_path.device)
    a[4, 7], grad[22, 5] = torch.nan, torch.nan
    got = run(block_scaled.grouped_mm, a, w, grad, offs, scaling=scaling)
    bad = [torch.zeros_like(each) for each in got]
    bad[0][4], bad[1][22], bad[2][0, :, 7], bad[2][1, 5] = 1, 1, 1, 1
    for one, where in zip(got, bad, strict=True):
        assert one.isnan().equal(where.bool())


# ---------------------------------------------------------------------------------------------------
# Memory, hosts, layouts


@SCALINGS
@pytest.mark.parametrize("ends", [[8, 100, 64], [40, 8, 64], [-16, 16, 64], [257, 0, 257, 0, 257]], ids=str)
def test_wrong_ends_touch_no_foreign_memory(scaling: str, ends: list[int], triton_path: KernelPath) -> None:
    """The last ones ask for more blocks of columns than any right ones of as many rows."""
    sizes = (ends[-1], *(0,) * (len(ends) - 1))
    a, w, grad, _ = operands(Split("", sizes), 16, 32, triton_path.device)
    offs = torch.tensor(ends, dtype=torch.int32, device=a.device)
    with guarded_allocations():
        run(block_scaled.grouped_mm, a, w, grad, offs, scaling=scaling)


@SCALINGS
def test_nothing_reads_the_device(scaling: str, gpu: torch.device) -> None:
    given = operands(RAGGED, 32, 48, gpu)
    run(block_scaled.grouped_mm, *given, scaling=scaling)
    with no_device_waits(), no_host_reads():
        run(block_scaled.grouped_mm, *given, scaling=scaling)


@pytest.mark.parametrize("operand", range(3), ids=["a", "w", "grad"])
def test_layouts(operand: int, compiled_path: KernelPath) -> None:
    given = list(operands(Split("", (19, 0, 13)), 32, 48, compiled_path.device))
    plain = run(block_scaled.grouped_mm, *given)
    for name, layout in LAYOUTS.items():
        other = [*given]
        other[operand] = layout(given[operand])
        for one, expected in zip(run(block_scaled.grouped_mm, *other), plain, strict=True):
            assert one.equal(expected), name


def test_only_what_is_asked_for_is_kept_and_counted(compiled_path: KernelPath) -> None:
    a, w, grad, offs = operands(RAGGED, 32, 48, compiled_path.device)
    columns = (RAGGED.rows + 127 * RAGGED.groups) // 128 * 128
    expected = run(block_scaled.grouped_mm, a, w, grad, offs)
    for needs_a, needs_w in ((True, False), (False, True)):
        a_leaf, w_leaf = a.detach().requires_grad_(needs_a), w.detach().requires_grad_(needs_w)
        saved: list[int] = []

        def pack(tensor: Tensor, saved: list[int] = saved) -> Tensor:
            saved.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            out = block_scaled.grouped_mm(a_leaf, w_leaf.mT, offs)
        assert (columns * 32 in saved) == needs_w
        with mock.patch.object(module, "_multiply_rows", wraps=module._multiply_rows) as dgrad:
            out.backward(grad)
        assert dgrad.call_count == needs_a
        for leaf, right in ((a_leaf, expected[1]), (w_leaf, expected[2])):
            assert (leaf.grad is not None) == leaf.requires_grad
            assert leaf.grad is None or leaf.grad.equal(right)


def test_wrong_arguments() -> None:
    a, w, _, offs = operands(Split("", (3, 4)), 16, 32, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"^scaling: is 'rowwise'; may be '1x128' or 'mx'$"):
        block_scaled.grouped_mm(a, w.mT, offs, scaling="rowwise")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^b_t: has inner width 32"):
        block_scaled.grouped_mm(a, w, offs)
    out = block_scaled.grouped_mm(a.requires_grad_(), w.mT, offs)
    with pytest.raises(RuntimeError, match=r"^grouped_mm: its gradient was asked for with create_graph=True"):
        torch.autograd.grad(out.sum(), a, create_graph=True)


# ---------------------------------------------------------------------------------------------------
# Operators and compilation


@SCALINGS
def test_opcheck(scaling: str, kernel_path: KernelPath) -> None:
    a, w, _, offs = operands(Split("", (5, 0, 3)), 32, 48, kernel_path.device)
    given = a.requires_grad_(), w.mT.detach().requires_grad_(), offs, scaling == "mx", False, True, None
    torch.library.opcheck(torch.ops.perfguard_kernels.block_scaled_mm.default, given)


@SCALINGS
def test_compiles_whole(scaling: str, compiled_path: KernelPath) -> None:
    """One graph, the same bits."""

    def layer(a: Tensor, w: Tensor, offs: Tensor) -> Tensor:
        return block_scaled.grouped_mm(a * 2, w, offs, scaling=scaling).float().sin()  # type: ignore[arg-type]

    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for split in (Split("", (3, 17, 20)), Split("", (0, 0, 30), unused=10), Split("", (1, 1, 55))):
        given = operands(split, 32, 48, compiled_path.device)
        for one, other in zip(run(compiled, *given), run(layer, *given), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "arch", ["sm_90", *(pytest.param(arch, marks=pytest.mark.nightly) for arch in ("sm_100", "gfx942", "gfx950"))]
)
def test_compiles_without_spills(arch: str, nursery: Nursery) -> None:
    """Every configuration; Hopper's and Blackwell's products are their matrix units', fed by the copy engine."""
    found = elsewhere.compiled(nursery, "targets", "block scales", arch, "all")
    assert {one["kernel"] for one in found} == {
        "quantize_tokens", "quantize_blocks", "multiply_rows", "multiply_groups", "_find_places", "_fetch"
    }  # fmt: skip
    spilled = ("stack_bytes",) if arch.startswith("sm_") else ("vgpr_spill_count", "private_segment_fixed_size")
    unit = {"sm_90": "wgmma", "sm_100": "tensor_core"}.get(arch, "mfma")
    most = hardware_of(arch).shared_memory_bytes
    assert most is not None
    for one in found:
        assert not any(one[name] for name in spilled), one
        assert one["shared_bytes"] <= most, one
        if one["kernel"].startswith("multiply"):
            assert one[unit] > 0, one
            assert one.get("bulk_loads") != 0, one


# ---------------------------------------------------------------------------------------------------
# Rows that are permuted and padded

COUNTS = {
    "two ranks": [[3, 0, 40], [1, 5, 0]],
    "one rank": [[0, 7, 0, 2]],
    "nobody": [[0, 0]],
    "one expert": [[5], [6], [0]],
    "more ranks than rows": [[1, 0], [0, 0], [0, 0], [0, 1], [1, 1]],
}


@pytest.mark.parametrize("alignment", [1, 16, 128])
@pytest.mark.parametrize("counts", COUNTS)
def test_rows_by_expert_and_back(counts: str, alignment: int, kernel_path: KernelPath) -> None:
    """By index, from the counts alone; gradients are moves too, of the second order as well."""
    numbers = torch.tensor(COUNTS[counts], device=kernel_path.device)
    used = int(numbers.sum())
    x = torch.randn(used + 2, 20, device=kernel_path.device, requires_grad=True)  # two rows of nobody
    padded = permute_and_pad(x, numbers, alignment)
    starts = (numbers.flatten().cumsum(0) - numbers.flatten()).view(numbers.shape)
    expected, end, ends = torch.zeros_like(padded.rows), 0, []
    for expert in range(numbers.shape[1]):
        for start, count in zip(starts[:, expert].tolist(), numbers[:, expert].tolist(), strict=True):
            expected[end : end + count] = x[start : start + count].detach()
            end += count
        end = -(-end // alignment) * alignment
        ends.append(end)
    assert padded.offs.tolist() == ends
    assert padded.offs.dtype == torch.int32
    assert len(padded.rows) % alignment == 0
    assert padded.rows.equal(expected)
    back = unpermute(padded.rows, padded)
    assert back[:used].equal(x[:used])
    assert not back[used:].any()
    (gradient,) = torch.autograd.grad(back.square().sum(), x, create_graph=True)
    assert gradient.equal(2 * back)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    assert second[:used].eq(2).all()
    assert not second[used:].any()


def test_padded_groups_multiply_to_the_same_rows(compiled_path: KernelPath) -> None:
    """What the padding is for: rows between groups add nothing, and come back as nobody's."""
    a, w, _, offs = operands(Split("", (19, 0, 140)), 32, 48, compiled_path.device)
    counts = torch.diff(offs, prepend=offs.new_zeros(1))
    padded = permute_and_pad(a, counts, 128)
    out = block_scaled.grouped_mm(padded.rows, w.mT, padded.offs)
    assert unpermute(out, padded).equal(block_scaled.grouped_mm(a, w.mT, offs))


def test_counts_of_more_rows_than_there_are(kernel_path: KernelPath) -> None:
    """An error on a CPU; where the host does not read them, zeros, and no foreign memory."""
    x, counts = torch.ones(4, 3, device=kernel_path.device), torch.tensor([[3, 9]], device=kernel_path.device)
    if kernel_path.name == "eager":
        with pytest.raises(ValueError, match=r"^counts: are 12 rows in all; may be 4, those of x$"):
            permute_and_pad(x, counts, 4)
        return
    with guarded_allocations():
        padded = permute_and_pad(x, counts, 4)
    assert padded.rows.sum(1).tolist() == [3, 3, 3, 0, 3, 0, 0, 0, 0, 0, 0, 0][: len(padded.rows)]


def test_opcheck_of_moves(kernel_path: KernelPath) -> None:
    x = torch.randn(9, 6, device=kernel_path.device, requires_grad=True)
    counts = torch.tensor([[3, 2], [1, 2]], device=kernel_path.device)
    torch.library.opcheck(torch.ops.perfguard_kernels.permute_places.default, (counts, 9, 4))
    padded = permute_and_pad(x, counts, 4)
    torch.library.opcheck(torch.ops.perfguard_kernels.permute_rows.default, (x, padded.origin, padded.place))


def test_wrong_counts_and_alignments() -> None:
    x = torch.randn(4, 3)
    integers = "may be torch.int64, torch.int32, of (R, E) or (E,)"
    for counts, found in (
        (torch.ones(2), "torch.float32, shape (2,)"),
        (torch.ones(1, 1, 2).long(), "torch.int64, shape (1, 1, 2)"),
        ([3, 1], "list"),
    ):
        with pytest.raises(ValueError, match=re.escape(f"counts: is {found}; {integers}")):
            permute_and_pad(x, counts, 16)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^counts: are \[\[5, -1\]\]; may be 0 or more$"):
        permute_and_pad(x, torch.tensor([5, -1]), 16)
    with pytest.raises(ValueError, match=r"^alignment: is 0; may be 1 or more$"):
        permute_and_pad(x, torch.tensor([4]), 0)
    padded = permute_and_pad(x, torch.tensor([4]), 16)
    with pytest.raises(ValueError, match=r"^rows: has 4 elements; may have 32"):
        unpermute(x, padded)
    with pytest.raises(ValueError, match=r"^rows: is on meta; may be on cpu, where `padded` is$"):
        unpermute(padded.rows.to("meta"), padded)
