"""Our float8 products: every candidate, both forms, against emulation; what they may not touch; what they compile to.

Without a GPU the kernels of `products.py` are interpreted; those of `specialised.py`, which nothing interprets, are
compiled for Hopper.
"""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import Tensor

from kernels.fp8 import launch_products, scaled
from kernels.fp8.launch_products import Form, candidates
from kernels.fp8.shapes import Split, equal
from kernels.hardware import arch_of
from tests.kernels import elsewhere
from tests.kernels.guards import guarded_allocations
from tests.kernels.paths import GPU, KernelPath
from tests.nursery import Nursery

FORMS = pytest.mark.parametrize("form", ["rows", "groups"])
SPLITS = (
    Split("ragged", (0, 1, 7, 15, 17, 33), unused=3),  # no group a multiple of 16, an empty one, rows of no group
    Split("one", (0, 0, 70, 0)),  # empty groups all around
    Split("none", (0, 0, 0), unused=5),  # nothing but zeros
    equal(64, 2),  # whole tiles
)
WIDTHS = ((48, 80), (16, 32))  # inner, outer: tails of both, and less than one tile
NAN_CODE = 0x7F


def drawn(form: Form, split: Split, inner: int, outer: int, device: torch.device) -> tuple[Tensor, ...]:
    """Codes, codes, 1 / scales of both, ends: as `rows_product` and `groups_product` take them.

    Rows of no group are NaN in form "rows", and lie on their scales; "groups" has no code past the last end.
    """
    groups, used = split.groups, sum(split.sizes)

    def codes(*shape: int) -> Tensor:
        return torch.randint(-8, 9, shape).float().to(torch.float8_e4m3fn)

    def inverses(*shape: int) -> Tensor:
        return torch.exp2(torch.randint(-3, 4, shape).float())

    if form == "rows":
        a, a_inverse = codes(split.rows, inner), inverses(split.rows)
        a.view(torch.uint8)[used:] = NAN_CODE
        a_inverse[used:] = torch.nan
        drawn = (a, codes(groups, outer, inner), a_inverse, inverses(groups, outer), split.offs("cpu"))
    else:
        sizes = torch.tensor(split.sizes)
        ends = ((sizes + 15) // 16 * 16).cumsum(0).int()
        padded = int(ends[-1]) + 16
        drawn = (codes(outer, padded), codes(inner, padded), inverses(groups, outer), inverses(groups, inner), ends)
    return tuple(tensor.to(device) for tensor in drawn)


def product(form: Form, drawn: tuple[Tensor, ...], fast: bool = True, candidate: int | None = None) -> Tensor:
    run = launch_products.rows_product if form == "rows" else launch_products.groups_product
    return run(*drawn, fast, candidate)


def emulated(form: Form, drawn: tuple[Tensor, ...]) -> Tensor:
    a, b, a_inverse, b_inverse, ends = drawn
    if form == "rows":
        return scaled.by_group_2d3d(scaled.emulated, a, b.mT, a_inverse, b_inverse, ends)
    return scaled.by_group_2d2d(scaled.emulated, a, b.t(), a_inverse, b_inverse, ends)


@FORMS
@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_every_candidate_against_emulation(
    form: Form, split: Split, widths: tuple[int, int], triton_path: KernelPath
) -> None:
    """Small whole numbers: sums are exact in every order and every accumulator, so results are equal bit for bit."""
    operands = drawn(form, split, *widths, triton_path.device)
    expected = emulated(form, operands)
    for fast in (True, False):
        width = expected.shape[-1]
        for number in range(len(candidates(arch_of(triton_path.device), width, fast))):
            got = product(form, operands, fast, number)
            assert got.dtype == torch.bfloat16
            assert got.equal(expected), (number, fast)


@FORMS
def test_nan_stays_in_its_group(form: Form, triton_path: KernelPath) -> None:
    """Codes of the next group lie in the tiles of this one."""
    operands = drawn(form, Split("", (5, 40, 7)), 48, 80, triton_path.device)
    expected = product(form, operands)
    a, ends = operands[0], operands[-1].tolist()
    own = slice(ends[0], ends[1])
    for codes in operands[:1] if form == "rows" else operands[:2]:
        (codes if form == "rows" else codes.t()).view(torch.uint8)[own] = NAN_CODE
    got = product(form, operands)
    poisoned, kept = (own, [*range(ends[0]), *range(ends[1], len(a))]) if form == "rows" else (1, [0, 2])
    if GPU:
        assert got[poisoned].isnan().all()
    assert not got[poisoned].equal(expected[poisoned])  # the interpreter reads the code of NaN as a number
    assert got[kept].equal(expected[kept])


@FORMS
@pytest.mark.parametrize("ends", [[8, 100, 64], [40, 8, 64], [-16, 16, 64]], ids=str)
def test_wrong_ends_touch_no_foreign_memory(form: Form, ends: list[int], triton_path: KernelPath) -> None:
    """Past the buffer, decreasing, negative: the caller's error, whose result is any, and stays in the result."""
    operands = drawn(form, Split("", (16, 16, 32)), 48, 80, triton_path.device)
    offs = torch.tensor(ends, dtype=torch.int32, device=triton_path.device)
    with guarded_allocations():
        product(form, (*operands[:-1], offs))


@pytest.mark.parametrize(
    ("height", "width", "fast", "expected"),
    [
        (1408, 2048, False, "triton"),
        (8192, 5120, False, "grouped"),
        (4096, 4096, False, "grouped"),
        (8192, 5120, True, "triton"),
    ],
)
def test_large_accurate_wgrads_are_the_librarys(height: int, width: int, fast: bool, expected: str) -> None:
    """Where it works: ours, measured faster with fast accumulation, has not been timed without."""
    a, b = torch.empty(height, 16, dtype=torch.float8_e4m3fn), torch.empty(width, 16, dtype=torch.float8_e4m3fn).t()
    inverses = torch.ones(height), torch.ones(width)
    with (
        mock.patch.object(scaled, "probe", return_value=scaled.Probe("triton", (), "grouped")),
        mock.patch.object(scaled, "_run_2d2d", return_value=torch.empty(1, height, width)) as run,
    ):
        scaled.matmul_2d2d(a, inverses[0], b, inverses[1], torch.tensor([16], dtype=torch.int32), fast, None)
    assert run.call_args.args[-1] == expected


def test_a_bad_candidate_is_refused(triton_path: KernelPath) -> None:
    operands = drawn("rows", equal(16, 1), 16, 16, triton_path.device)
    with pytest.raises(ValueError, match=r"^candidate: is 9; may be 0 to \d here$"):
        product("rows", operands, candidate=9)


def test_the_tile_follows_the_width() -> None:
    """1408 columns are 5.5 tiles of 256, but 11 of 128; 8192 fit either."""
    assert candidates("sm_90", 8192, True)[0].width == 256
    assert candidates("sm_90", 1408, True)[0].width == 128
    assert all(not config.specialised for config in candidates("sm_89", 8192, True))


# By day the default of each form, every night all candidates.
COMPILED = pytest.mark.parametrize(
    "candidates", [(), pytest.param(("all",), marks=pytest.mark.nightly)], ids=["default", "all"]
)


@COMPILED
def test_compiles_for_blackwell(candidates: tuple[str, ...], nursery: Nursery) -> None:
    """What sm_100 runs where torch refuses its grouped matmul, so that nothing reads offs on the host."""
    found = elsewhere.compiled(nursery, "targets", "fp8 products", "sm_100", *candidates)
    assert {one["case"] for one in found} == {
        f"{form} {sums}" for form in ("rows", "groups") for sums in ("fast", "accurate")
    }
    for one in found:
        assert one["bulk_loads"] > 0, one
        assert one["tensor_core"] > 0, one
        assert one["stack_bytes"] == 0, one
        assert one["shared_bytes"] <= 227 << 10, one


@COMPILED
def test_compiles_for_hopper(candidates: tuple[str, ...], nursery: Nursery) -> None:
    """Warp-group products, bulk copies, shared memory that there is, and no accumulator spilled.

    One address may be: Triton 3.9 does so in one of these kernels, 3.6 in none.
    """
    found = elsewhere.compiled(nursery, "targets", "fp8 products", "sm_90", *candidates)
    assert {(one["case"], one["gluon"]) for one in found} == {
        (f"{form} {sums}", warps)
        for form in ("rows", "groups")
        for sums, warps in (("fast", True), ("fast", False), ("accurate", False))
        if candidates or warps == (sums == "fast")
    }
    for one in found:
        assert one["wgmma"] > 0, one
        assert one["bulk_loads"] > 0, one
        assert one["stack_bytes"] <= 8, one
        assert one["shared_bytes"] <= 227 << 10, one
        assert (one["registers_moved"] > 0) == one["gluon"], one
