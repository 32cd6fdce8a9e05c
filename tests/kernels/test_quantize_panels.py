"""What passes through shared memory: weights held whole, tokens and weights through a ring; which they are, and, on a
Hopper GPU, that their bits are the reference's.

Gluon has no interpreter. That the kernel compiles for Hopper is in test_quantize_targets.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernels.fp8 import launch, ops, reference
from kernels.fp8.configs import columns_candidates, panels_candidates, ring_candidates
from kernels.fp8.formats import FORMATS
from kernels.fp8.inputs import VALUES, cat_split, column_major
from kernels.fp8.shapes import Split
from kernels.hardware import HARDWARE, arch_of
from kernels.launch import MAX_CANDIDATES
from tests.kernels.guards import guarded_allocations
from tests.kernels.quantizers import QUANTIZERS, Quantizer, assert_bit_equal, name

E4M3FN, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
TRANSPOSES = pytest.mark.parametrize(
    "q", [q for q in QUANTIZERS if q.name in ("transpose_3d_atomic", "transpose_3d_reduction")], ids=name
)


@pytest.mark.parametrize(
    ("arch", "dtype", "rows", "width", "serves"),
    [
        ("sm_90", E4M3FN, 1408, 2048, True),  # an expert of DeepSeek 16B
        ("sm_90", E5M2, 16, 16, True),  # the smallest
        ("sm_90", E4M3FN, 1792, 2048, True),  # the most that fits 227 KiB
        ("sm_90", E4M3FN, 1808, 2048, False),
        ("sm_90", E4M3FN, 8192, 5120, False),  # an expert of llama4
        ("sm_90", E4M3FN, 0, 2048, False),  # has scales, and nothing to copy
        ("sm_90", E4M3FN, 1400, 2048, False),  # columns of codes do not start on a multiple of 16 bytes
        ("sm_90", E4M3FN, 1408, 2040, False),
        ("sm_90", torch.float8_e4m3fnuz, 1408, 2048, False),  # no conversion of Hopper's own
        *((arch, E4M3FN, 1408, 2048, False) for arch in HARDWARE if arch != "sm_90"),
    ],
)
def test_which_weights_are_served(arch: str, dtype: torch.dtype, rows: int, width: int, serves: bool) -> None:
    assert bool(panels_candidates(arch, dtype, rows, width)) == serves


def test_what_is_offered_fits_a_block_and_the_table() -> None:
    for rows in range(16, 1793, 16):
        offered = panels_candidates("sm_90", E4M3FN, rows, 2048)
        others = columns_candidates("sm_90", layout="kept")
        assert len(offered) + len(others) <= MAX_CANDIDATES
        for config in offered:
            assert config.tiles(rows) * config.rows >= rows
            assert config.shared_bytes(rows) <= HARDWARE["sm_90"].shared_memory_bytes  # type: ignore[operator]


@pytest.mark.parametrize("arch", HARDWARE)
@pytest.mark.parametrize("dtype", [E4M3FN, E5M2, torch.float8_e4m3fnuz])
@pytest.mark.parametrize("rows", [None, 2048, 8192])
def test_what_passes_through_a_ring(arch: str, dtype: torch.dtype, rows: int | None) -> None:
    offered = ring_candidates(arch, dtype, rows)
    assert bool(offered) == (arch == "sm_90" and dtype != torch.float8_e4m3fnuz)
    for config in offered:
        assert config.slots > config.held  # else a team could take a filling of a slot for the one before
        assert config.slots * config.rows * config.width * 2 < HARDWARE[arch].shared_memory_bytes  # type: ignore[operator]
    assert 1 + len(offered) + len(columns_candidates(arch, layout="kept")) <= MAX_CANDIDATES  # with one of panels


@pytest.mark.parametrize(("rows", "held"), [(2816, 11), (2832, 7)])
def test_a_long_weight_passes_in_shorter_chunks(rows: int, held: int) -> None:
    (offered,) = ring_candidates("sm_90", E4M3FN, rows)
    assert offered.held == held


# ---------------------------------------------------------------------------------------------------
# On a Hopper GPU


@pytest.fixture
def hopper(gpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that names each launch of the kernel from now on."""
    if arch_of(gpu) != "sm_90":
        pytest.skip(f"needs an sm_90 GPU: this one is {arch_of(gpu)}")
    launched: list[str] = []

    def noted(plan: type[launch.PanelsPlan | launch.RingPlan], name: str) -> Callable[..., None]:
        run: Callable[..., None] = plan.run

        def note(*args: Any) -> None:
            launched.append(name)
            run(*args)

        return note

    monkeypatch.setattr(launch.PanelsPlan, "run", noted(launch.PanelsPlan, "panels"))
    monkeypatch.setattr(launch.RingPlan, "run", noted(launch.RingPlan, "ring"))
    return launched


def check(q: Quantizer, weight: torch.Tensor, because: str, **options: object) -> None:
    """As in test_quantize_edges.py."""
    with guarded_allocations():
        got = q.function(weight, **options)
    assert_bit_equal(got, q.reference(weight, **options), because)


@pytest.mark.parametrize("values", VALUES)
@TRANSPOSES
def test_values(q: Quantizer, values: str, gpu: torch.device, hopper: list[str]) -> None:
    for x_dtype, dtype, power_of_two in itertools.product(
        (torch.bfloat16, torch.float16), (E4M3FN, E5M2), (True, False)
    ):
        split, options = Split("", (16, 128, 16)), {"dtype": x_dtype, "format_": FORMATS[dtype]}
        (weight,) = q.arguments(split, 48, gpu, fill=VALUES[values], layout=column_major, **options)  # type: ignore[arg-type]
        because = f"{values}, {x_dtype} to {dtype}, {power_of_two=}"
        check(q, weight, because, dtype=dtype, power_of_two=power_of_two)
    assert hopper == ["panels"] * 8


@pytest.mark.parametrize("rows", [16, 112, 128, 144, 1408, 1792])  # short of a tile, one, over one, and the most
@pytest.mark.parametrize("width", [16, 64, 80, 1040])  # short of a panel, one, over one, and more than run side by side
@TRANSPOSES
def test_sizes(q: Quantizer, rows: int, width: int, gpu: torch.device, hopper: list[str]) -> None:
    weight = torch.randn(3, rows, width, device=gpu).bfloat16().mT
    check(q, weight, f"{rows} rows, width {width}")
    check(q, cat_split(weight.mT).mT, "rows that lie apart")
    apart = torch.full((3, rows, width + 2), torch.nan, device=gpu, dtype=torch.bfloat16)[..., 2:].copy_(weight.mT)
    check(q, apart.mT, "rows that start at no multiple of 16 bytes")
    assert hopper == ["panels"] * 3


@pytest.mark.parametrize("power_of_two", [True, False])
def test_reciprocals(power_of_two: bool, gpu: torch.device, hopper: list[str]) -> None:
    """What a matmul multiplies by."""
    weight = torch.randn(2, 1408, 96, device=gpu).bfloat16().mT
    codes, scales = reference.quantize_transpose_3d_atomic(weight, power_of_two=power_of_two)
    got = ops.transpose_3d_atomic(weight, None, power_of_two, None, True)
    assert_bit_equal(got, (codes, 1 / scales))
    assert hopper == ["panels"]


SIZES = {
    "one": (16,),
    "short": (1, 7, 15, 17, 33, 7),
    "skewed": (100, 3000, 5, 1, 900),
    "empty": (0, 0, 0),
    "long among empty ones": (0, 0, 2000, 0, 0, 0, 4000, 0),  # a team must not be a ring ahead
    "all to one": (0, 0, 0, 16640, 0, 0),
    "many": (*(0, 17) * 30, 3000, 3000, 0),
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("width", [16, 64, 320, 1000])
@pytest.mark.parametrize("tail", [0, 1000])
def test_tokens(sizes: tuple[int, ...], width: int, tail: int, gpu: torch.device, hopper: list[str]) -> None:
    """Rows past the last group besides, groups side by side and at multiples of 16, and a second operand."""
    rows = -(-(sum(sizes) + tail) // 16) * 16
    x = torch.randn(rows, width, device=gpu).bfloat16()
    x.view(-1)[::977] *= 100
    other = torch.randn(rows, 448, device=gpu).bfloat16()
    offs = torch.tensor(sizes, device=gpu).cumsum(0).int()
    with guarded_allocations():
        got = ops.quantize_colwise_per_group(x, offs)
        padded = ops.quantize_colwise_per_group(x, offs, alignment=16)
        dual = ops.quantize_colwise_per_group_dual(other, x, offs)
    expected = reference.quantize_colwise_per_group(x, offs)
    assert_bit_equal(got, expected)
    assert_bit_equal(padded, reference.quantize_colwise_per_group(x, offs, alignment=16), "padded")
    assert_bit_equal(dual[2:], expected, "second of two")
    assert_bit_equal(dual[:2], reference.quantize_colwise_per_group(other, offs), "first of two")
    assert hopper == ["ring"] * 3


@pytest.mark.parametrize("values", VALUES)
def test_values_of_tokens(values: str, gpu: torch.device, hopper: list[str]) -> None:
    for x_dtype, dtype, power_of_two in itertools.product(
        (torch.bfloat16, torch.float16), (E4M3FN, E5M2), (True, False)
    ):
        (q,) = (q for q in QUANTIZERS if q.name == "colwise_per_group")
        split = Split("", (1000, 0, 1300, 52))
        x, offs = q.arguments(split, 48, gpu, fill=VALUES[values], dtype=x_dtype, format_=FORMATS[dtype])
        options = {"dtype": dtype, "power_of_two": power_of_two}
        assert_bit_equal(q.function(x, offs, **options), q.reference(x, offs, **options), f"{values}, {options}")
    assert hopper == ["ring"] * 8


@pytest.mark.parametrize(("rows", "width"), [(1808, 64), (2048, 80), (5120, 1040), (8192, 320)])
@TRANSPOSES
def test_long_weights(q: Quantizer, rows: int, width: int, gpu: torch.device, hopper: list[str]) -> None:
    weight = torch.randn(3, rows, width, device=gpu).bfloat16().mT
    check(q, weight, f"{rows} rows, width {width}")
    check(q, cat_split(weight.mT).mT, "rows that lie apart")
    assert hopper == ["ring"] * 2
