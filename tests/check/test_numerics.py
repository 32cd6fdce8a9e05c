"""The numerics rule on single tensors: figures, limits, codes, scales, oracles, what a wrong result looks like."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from perfguard.check.correctness import check
from perfguard.check.numerics.fp8_codes import compare_codes, compare_scales
from perfguard.check.numerics.hints import jagged, looks_like
from perfguard.check.numerics.oracle import NARROW, Widen, fits_in_float64, run_wide, unrounded_codes
from perfguard.check.numerics.rule import compare
from perfguard.check.numerics.sums import FP8_DTYPES, Groups
from perfguard.model.call import Call, Tolerance
from perfguard.model.records import Accuracy
from perfguard.tensors import seeding

LOOSE = "the test needs it"


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def judged(candidate: torch.Tensor, oracle: torch.Tensor, **options: object) -> Accuracy:
    """Against an eager that rounds once."""
    return compare(candidate, oracle.to(candidate.dtype), oracle, name="output", **options)  # type: ignore[arg-type]


# -- the figures of one rounding ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "decibel"), [(torch.bfloat16, 55.6), (torch.float16, 73.7)])
def test_one_rounding_of_normal_data_has_the_known_sqnr(dtype: torch.dtype, decibel: float) -> None:
    oracle = normal(512, 256)
    accuracy = judged(oracle.to(dtype), oracle)
    assert accuracy.sqnr_db == pytest.approx(decibel, abs=0.1)
    assert (accuracy.error_ratio, accuracy.problem) == (pytest.approx(1.0), "")


@pytest.mark.parametrize("dtype", FP8_DTYPES, ids=str)
def test_one_rounding_to_8_bits_has_the_known_sqnr(dtype: torch.dtype) -> None:
    unrounded = normal(512, 256).float()
    accuracy = compare_codes(unrounded.to(dtype), unrounded.to(dtype), unrounded, name="output")
    assert accuracy.sqnr_db == pytest.approx(31.5 if "e4m3" in str(dtype) else 25.6, abs=0.1)
    assert accuracy.problem == ""


# -- the rule ----------------------------------------------------------------------------------------------------------


def test_one_wrong_group_is_found_though_the_whole_passes() -> None:
    oracle = normal(4096, 64)
    candidate = oracle.bfloat16()
    candidate[77] = (oracle[77] * 1.03).bfloat16()
    accuracy = judged(candidate, oracle)
    assert accuracy.rmse is not None
    assert accuracy.limit is not None
    assert accuracy.rmse <= accuracy.limit
    for words in ("row 77 of 4096", "the whole tensor passes", "looks scaled by 1.03"):
        assert words in accuracy.problem
    assert accuracy.worst_index[0] == 77
    column = accuracy.worst_index[1]
    assert float(accuracy.got) == pytest.approx(float(candidate[77, column]), rel=1e-4)
    assert float(accuracy.want) == pytest.approx(float(oracle[77, column]), rel=1e-4)


@pytest.mark.parametrize("factor", [0.5, 2.0, -1.0])
def test_a_constant_factor_is_named(factor: float) -> None:
    oracle = normal(16, 64)
    assert f"looks scaled by {factor:g}" in judged((oracle * factor).bfloat16(), oracle).problem
    assert "scaled" not in judged(normal(16, 64, seed=1).bfloat16(), oracle).problem


def test_groups_along_another_dimension() -> None:
    oracle = normal(64, 128)
    candidate = oracle.bfloat16()
    candidate[:, 5] *= 0.9
    accuracy = judged(candidate, oracle, tolerance=Tolerance(group_dim=1, reason=LOOSE))
    assert accuracy.worst_group == "index 5 of 128 along dimension 1"
    assert accuracy.worst_index[1] == 5
    assert float(accuracy.got) == pytest.approx(float(candidate[tuple(accuracy.worst_index)]), rel=1e-4)


@given(
    shape=st.lists(st.integers(1, 40), max_size=3).map(torch.Size),
    dim=st.none() | st.integers(-3, 2),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_groups_cover_every_element_once_and_find_it_again(
    shape: torch.Size, dim: int | None, data: st.DataObject
) -> None:
    groups = Groups(shape, dim)
    tensor = torch.arange(shape.numel()).reshape(shape)
    parts = groups.split(tensor)
    assert sum(len(part) for part in parts) == groups.number
    assert sorted(torch.cat([part.reshape(-1) for part in parts]).tolist()) == list(range(shape.numel()))
    group = data.draw(st.integers(0, groups.number - 1))
    members = groups.select(tensor, group)
    element = data.draw(st.integers(0, len(members) - 1))
    assert int(tensor[tuple(groups.index(group, element))]) == int(members[element])


def test_short_rows_and_vectors_are_joined() -> None:
    assert [Groups(torch.Size(shape)).number for shape in ([1000], [64, 8], [4, 64])] == [31, 16, 4]
    assert Groups(torch.Size([1000])).label(30) == "elements 960 to 999"


def test_gradients_and_tolerances_have_a_wider_limit() -> None:
    oracle = normal(64, 64)
    noisy = (oracle * (1 + 2.5 * 0.00166 * normal(64, 64, seed=1))).bfloat16()
    assert judged(noisy, oracle).problem
    assert judged(noisy, oracle, gradient_of="parameter").problem == ""
    noisy = (oracle * (1 + 0.01 * normal(64, 64, seed=1))).bfloat16()
    assert judged(noisy, oracle).problem
    assert judged(noisy, oracle, tolerance=Tolerance(k=10, reason=LOOSE)).problem == ""


def test_an_all_zero_group_must_stay_zero() -> None:
    oracle = normal(8, 64)
    oracle[3] = 0
    candidate = oracle.float()
    assert judged(candidate, oracle).problem == ""
    candidate[3, 9] = 1e-20
    accuracy = judged(candidate, oracle)
    assert "row 3 of 8" in accuracy.problem
    assert accuracy.worst_index == [3, 9]


def test_a_group_where_eager_is_exact_by_luck_is_protected() -> None:
    oracle = normal(64, 64)
    oracle[5] = oracle[5].bfloat16().double()  # eager's row 5 has no error
    candidate = oracle.bfloat16()
    candidate[5] = (oracle[5] * (1 + 0.001 * normal(64, seed=4))).bfloat16()
    assert judged(candidate, oracle).problem == ""


@pytest.mark.parametrize("numbers", [1, 2, 4])
def test_a_few_sums_in_another_order_are_right(numbers: int) -> None:
    """As a loss: eager's error of one number is often next to nothing."""
    for seed in range(100):
        x = normal(numbers, 1000, seed=seed).float()
        oracle, eager = x.double().square().mean(1), x.square().mean(1)
        other = sum(x[:, start::4].square().sum(1) for start in range(4)) / 1000
        assert isinstance(other, torch.Tensor)
        assert compare(other, eager, oracle, name="loss").problem == ""
        assert compare(other * (1 + 1e-5), eager, oracle, name="loss").problem


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("numbers", [1, 3, 31, 64, 512])
def test_products_of_few_large_numbers_in_another_order_are_right(numbers: int, dtype: torch.dtype) -> None:
    """As many roundings as eager's. Of 512 such products three hold half of all squares."""
    for seed in range(100):
        a, b, c, d = normal(4, numbers, seed=seed).to(dtype)
        oracle = a.double() * b.double() * c.double() * d.double()
        assert compare(a * (b * (c * d)), a * b * c * d, oracle, name="y").problem == ""
        assert compare(a * (b * (c * d)) * 1.05, a * b * c * d, oracle, name="y").problem


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tokens", [1, 2])
def test_all_elements_of_a_row_may_share_one_error(tokens: int, dtype: torch.dtype) -> None:
    """As in the gradient of a weight, where a row is a sum of few tokens: what cancelled in one number of each row is
    another amount in eager."""
    for seed in range(20):
        x, w, dy = (normal(*shape, seed=seed).to(dtype) for shape in ((tokens, 64), (512, 256), (tokens, 512)))
        x, dy = x.double(), dy.double()
        oracle = (dy @ w.double()).t() @ x
        eager = ((dy.to(dtype) @ w).t() @ x.to(dtype)).to(dtype)
        other = sum(dy.to(dtype)[:, start::4] @ w[start::4] for start in range(4))
        assert isinstance(other, torch.Tensor)
        candidate = other.t() @ x.to(dtype)
        assert compare(candidate, eager, oracle, name="dw", gradient_of="parameter").problem == ""
        smallest = int(oracle.square().sum(1).argmin())
        candidate[smallest] *= 1.01
        assert (
            f"in row {smallest} of 256" in compare(candidate, eager, oracle, name="dw", gradient_of="parameter").problem
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_of_few_factors_may_be_worse_than_eager_in_the_same_row(dtype: torch.dtype) -> None:
    """As in the gradient of an expert whose tokens are of few kinds, one of which holds a row's whole error."""

    def rounded(oracle: torch.Tensor, seed: int) -> torch.Tensor:
        error = torch.finfo(dtype).eps * (0.5 * normal(len(oracle), 1, seed=seed)).exp()
        return (oracle * (1 + error)).to(dtype)

    for seed in range(5):
        oracle = normal(4096, 1024, seed=seed)
        eager, candidate = rounded(oracle, seed + 100), rounded(oracle, seed + 200)
        assert compare(candidate, eager, oracle, name="dw", gradient_of="parameter").problem == ""
        candidate[77] *= 1 + 16 * torch.finfo(dtype).eps
        assert "in row 77 of 4096" in compare(candidate, eager, oracle, name="dw", gradient_of="parameter").problem


@pytest.mark.parametrize("rows", ["few and hard", "many and small"])
def test_rows_that_are_hard_or_small_make_no_room_in_others(rows: str) -> None:
    oracle = normal(4096, 64)
    eager = oracle.bfloat16()
    if rows == "few and hard":
        eager[:800] *= 1.1
    else:
        oracle[:1600] *= 1e-3
        eager[:1600] = (oracle[:1600] + 1e-3 * normal(1600, 64, seed=1)).bfloat16()  # as large as errors of other rows
    candidate = eager.clone()
    assert compare(candidate, eager, oracle, name="y").problem == ""
    candidate[1777] *= 1.03
    assert "in row 1777 of 4096" in compare(candidate, eager, oracle, name="y").problem


def test_few_hard_rows_make_no_room_in_others_of_a_parameter_s_gradient() -> None:
    oracle = normal(4096, 64)
    eager = oracle.bfloat16()
    eager[:40] *= 1.1
    candidate = eager.clone()
    assert compare(candidate, eager, oracle, name="dw", gradient_of="parameter").problem == ""
    candidate[1777] *= 1.03
    assert "in row 1777 of 4096" in compare(candidate, eager, oracle, name="dw", gradient_of="parameter").problem


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_oracle_no_finer_than_the_output_leaves_room_for_another_order(dtype: torch.dtype) -> None:
    a, b = normal(40, 1000).to(dtype), normal(1000, 40, seed=1).to(dtype)
    total, other = a @ b, a.flip(1) @ b.flip(0)
    assert not torch.equal(total, other)
    assert compare(other, total, total, name="output").problem == ""
    assert compare(other * (1 + 1e-3), total, total, name="output").problem


NAMED = re.compile(r"; if it is to be as loose: Tolerance\((k|phi)=([\d.e+]+), reason='…'\)")


def loose(dtype: torch.dtype, by: float, rows: slice, exact: bool = False, tolerance: Tolerance | None = None) -> str:
    """The problem of a candidate that is off by about `by` roundings in these rows; eager is off by one, or by none."""
    oracle = normal(8, 256, seed=3)
    eager = oracle.to(dtype)
    oracle = eager.double() if exact else oracle
    candidate = oracle.clone()
    candidate[rows] *= 1 + (normal(8, 256, seed=4) * by * torch.finfo(dtype).eps / 2)[rows]
    return compare(candidate.to(dtype), eager, oracle, name="output", tolerance=tolerance).problem


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("rows", [slice(None), slice(2, 3)], ids=["all rows", "one row"])
@pytest.mark.parametrize(
    ("dtype", "by"), [(torch.float32, 400), (torch.float32, 3000), (torch.float16, 16), (torch.bfloat16, 6)]
)
def test_what_is_right_in_half_of_its_digits_is_told_the_tolerance_that_admits_it(
    dtype: torch.dtype, by: float, rows: slice, exact: bool
) -> None:
    problem = loose(dtype, by, rows, exact)
    told = NAMED.search(problem)
    assert told, problem
    for share, admitted in ((1.0, True), (0.8, False)):
        tolerance = Tolerance(**{told[1]: share * float(told[2])}, reason=LOOSE)
        assert (loose(dtype, by, rows, exact, tolerance) == "") is admitted


@pytest.mark.parametrize(
    ("dtype", "by", "rows"),
    [(torch.float32, 1e5, slice(None)), (torch.bfloat16, 60, slice(None)), (torch.float32, 1e7, slice(2, 3))],
)
def test_what_is_wrong_is_told_no_tolerance(dtype: torch.dtype, by: float, rows: slice) -> None:
    problem = loose(dtype, by, rows)
    assert problem
    assert "Tolerance" not in problem


def test_what_has_a_pattern_is_told_no_tolerance() -> None:
    """Its columns, or a factor, where the result is right in half of its digits."""

    def told(candidate: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype = torch.float32) -> str:
        (problem,) = check(Call(candidate, (normal(64, 64, seed=5).to(dtype),), lambda x: x * 3)).wrong
        return problem

    assert "columns 48 to 63 of 64" in (last := told(lambda x: torch.where(torch.arange(64) > 47, x * 3 + 5e-4, x * 3)))
    assert "looks scaled by 1.02" in (scaled := told(lambda x: (x.float() * 3.06).to(x.dtype), torch.bfloat16))
    assert "Tolerance" not in last + scaled
    assert "Tolerance" in told(lambda x: x * 3 * (1 + 1e-4 * normal(64, 64, seed=6).float()))


# -- NaN and infinity, exact outputs, metadata, empty ones -------------------------------------------------------------


def test_nan_and_inf_must_stand_where_the_oracle_has_them() -> None:
    oracle = normal(8, 64)
    oracle[1, 2], oracle[3, 4] = math.nan, -math.inf
    assert judged(oracle.bfloat16(), oracle).problem == ""
    for index, value in (((1, 2), 0.0), ((3, 4), math.inf), ((5, 6), math.nan)):
        candidate = oracle.bfloat16()
        candidate[index] = value
        accuracy = judged(candidate, oracle)
        assert "1 of 512 elements are NaN or Inf unlike the oracle's" in accuracy.problem
        assert "Tolerance" not in accuracy.problem
        assert accuracy.worst_index == list(index)


def test_only_the_oracle_decides_what_overflows() -> None:
    oracle = normal(8, 64)
    eager = oracle.half()
    eager[2, 2] = math.inf
    assert compare(oracle.half(), eager, oracle, name="output").problem == ""
    wrong = oracle.half()
    wrong[2, 2] += 1  # is compared, though eager is infinite there
    assert "RMSE" in compare(wrong, eager, oracle, name="output").problem
    oracle[0, 0] = 1e6
    assert judged(oracle.half(), oracle).problem == ""
    clamped = oracle.half()
    clamped[0, 0] = 65504
    assert "NaN or Inf" in judged(clamped, oracle).problem


def test_integers_and_bools_must_be_equal() -> None:
    want = torch.arange(12).reshape(3, 4)
    got = want.clone()
    assert compare(got, want, want, name="output 1").problem == ""
    got[2, 1] = 7
    accuracy = compare(got, want, want, name="output 1")
    assert accuracy.problem.startswith("output 1: 1 of 12 elements differ")
    assert (accuracy.worst_index, accuracy.got, accuracy.want) == ([2, 1], "7", "9")
    assert compare(want > 3, want > 4, want > 4, name="output").problem


def test_shape_and_dtype_name_both() -> None:
    want = torch.zeros(3, 4)
    shape = compare(torch.zeros(4, 3), want, want, name="output").problem
    assert shape == "output: shape is [4, 3], the reference's is [3, 4]"
    dtype = compare(torch.zeros(3, 4, dtype=torch.half), want, want, name="output").problem
    assert dtype == "output: dtype is float16, the reference's is float32"


@pytest.mark.parametrize("shape", [(0, 32), (3, 0), (0,)])
def test_no_elements_pass(shape: tuple[int, ...]) -> None:
    empty = torch.zeros(shape)
    assert compare(empty, empty, empty.double(), name="output").problem == ""
    codes = empty.to(torch.float8_e5m2)
    assert compare_codes(codes, codes, empty, name="output").problem == ""


def test_scalars_vectors_and_complex_values_are_judged() -> None:
    for shape in ((), (7,), (65,)):
        oracle = normal(*shape)
        assert judged(oracle.float(), oracle).problem == ""
        assert judged(oracle.float() * 1.01, oracle).problem
    complex_ = torch.complex(normal(4, 32), normal(4, 32, seed=1))
    assert judged(complex_.to(torch.complex64), complex_).problem == ""
    assert judged(complex_.conj().to(torch.complex64), complex_).problem


# -- codes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FP8_DTYPES, ids=str)
def test_one_step_counts_as_a_tie_only_near_a_boundary(dtype: torch.dtype) -> None:
    unrounded = normal(16, 32).float()
    unrounded[3, 4] = 1 + 2.0 ** (-4 if "e4m3" in str(dtype) else -3)  # halfway between 1 and its neighbour
    eager = unrounded.to(dtype)
    candidate = eager.clone()
    candidate.view(torch.uint8)[3, 4] ^= 1  # 1.0 is even: its neighbour is the odd code
    accuracy = compare_codes(candidate, eager, unrounded, name="codes")
    assert (accuracy.problem, accuracy.ties) == ("", 1)
    unrounded[3, 4] = 1.01
    accuracy = compare_codes(candidate, eager, unrounded, name="codes")
    assert accuracy.ties == 0
    assert "1 of 512 codes differ" in accuracy.problem
    assert "0 of them by more than one step" in accuracy.problem
    assert accuracy.worst_index == [3, 4]
    assert accuracy.got.startswith("0x")
    allowed = Tolerance(fp8_step_fraction=0.01, reason=LOOSE)
    assert compare_codes(candidate, eager, unrounded, name="codes", tolerance=allowed).problem == ""
    assert compare_codes(candidate, eager, None, name="codes").problem
    assert compare_codes(candidate, eager, None, name="codes", tolerance=allowed).problem == ""


@pytest.mark.parametrize("dtype", FP8_DTYPES, ids=str)
def test_two_steps_are_never_allowed(dtype: torch.dtype) -> None:
    unrounded = normal(16, 32).float()
    eager = unrounded.to(dtype)
    candidate = eager.clone()
    candidate.view(torch.uint8)[0, 0] += 2
    allowed = Tolerance(fp8_step_fraction=1.0, reason=LOOSE)
    problem = compare_codes(candidate, eager, unrounded, name="codes", tolerance=allowed).problem
    assert "1 of them by more than one step" in problem


@pytest.mark.parametrize("dtype", FP8_DTYPES, ids=str)
def test_neighbouring_codes_are_one_step_apart_through_zero(dtype: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(dtype)
    values = codes.float()
    order = values.isfinite().nonzero().flatten()[values[values.isfinite()].argsort(stable=True)]
    ordered = codes.view(torch.uint8)[order].view(dtype)
    lower, upper = ordered[:-1], ordered[1:]
    accuracy = compare_codes(upper, lower, (lower.float() + upper.float()) / 2, name="codes")
    assert accuracy.problem == ""
    distinct = int((lower.float() != upper.float()).sum())
    assert accuracy.ties == distinct  # where a format has both zeros, they are equal


def test_nan_codes_must_match() -> None:
    unrounded = normal(4, 32).float()
    eager = unrounded.to(torch.float8_e4m3fn)
    candidate = eager.clone()
    candidate.view(torch.uint8)[1, 1] = 0x7F
    for got, want in ((candidate, eager), (eager, candidate)):
        accuracy = compare_codes(got, want, unrounded, name="codes")
        assert accuracy.worst_index == [1, 1]
        assert "by more than one step" in accuracy.problem
    assert compare_codes(candidate, candidate, unrounded, name="codes").problem == ""


def test_scales_within_two_ulps_and_powers_of_two_exactly() -> None:
    scales = torch.tensor([1.3, 448.0, 4.48e14, math.nan, 0.7])
    near = scales.clone()
    near.view(torch.int32)[0] += 2
    assert compare_scales(near, scales, name="scales").problem == ""
    near.view(torch.int32)[0] += 1
    accuracy = compare_scales(near, scales, name="scales")
    assert "1 of 5 scales differ" in accuracy.problem
    assert accuracy.worst_index == [0]
    powers = torch.tensor([2.0, 0.25, 2.0**48])
    off = powers.clone()
    off.view(torch.int32)[1] += 1
    assert "powers of two must be equal" in compare_scales(off, powers, name="scales").problem
    lost = scales.clone()
    lost[3] = 1.0
    assert compare_scales(lost, scales, name="scales").worst_index == [3]
    assert "0.5 times that" in compare_scales(powers / 2, powers, name="scales").problem


def test_the_middle_between_two_codes_goes_to_the_even_one_where_scales_are_exact() -> None:
    values = torch.tensor([[1.0625, 1.1875, -1.0625, 1.0]])  # between 1 and 1.125, 1.125 and 1.25
    even = values.to(torch.float8_e4m3fn)
    away = torch.tensor([[1.125, 1.25, -1.125, 1.0]]).to(torch.float8_e4m3fn)
    lenient = compare_codes(away, even, values, name="codes")
    assert (lenient.problem, lenient.ties) == ("", 2)
    strict = compare_codes(away, even, values, name="codes", exact_scales=True)
    assert "2 of them at the very middle between two codes, where it rounds away from zero" in strict.problem
    near = values * (1 - 2.0**-23)
    assert compare_codes(away, even, near, name="codes", exact_scales=True).problem == ""


# -- oracles -----------------------------------------------------------------------------------------------------------


def test_widening_reaches_casts_inside_the_reference() -> None:
    x = normal(8, 16)
    (wide,) = run_wide(lambda: [(x.float() * 3).to(torch.bfloat16).exp()], torch.float64)
    assert wide.dtype is torch.float64
    assert torch.equal(wide, (x * 3).exp())


def test_widening_reaches_tensors_of_the_default_dtype() -> None:
    index, x = torch.tensor([0, 2, 0]), normal(3, 16)
    (wide,) = run_wide(lambda: [torch.zeros(4, 16).index_add_(0, index, x)], torch.float64)
    assert torch.equal(wide[0], x[0] + x[2])
    assert torch.get_default_dtype() is torch.float32


def test_a_reference_that_reads_bits_runs_as_it_stands() -> None:
    x = normal(8, 16)
    seen = []

    def reference() -> list[torch.Tensor]:
        seen.append(True)
        return [x.float().view(torch.int32) & 0x7F800000]

    (exponents,) = run_wide(reference, torch.float64)
    assert exponents.shape == x.shape
    assert len(seen) == 2


def test_widening_ends_with_the_run() -> None:
    with Widen(NARROW, torch.float64):
        assert torch.zeros(2, dtype=torch.bfloat16).dtype is torch.float64
    assert torch.zeros(2, dtype=torch.bfloat16).dtype is torch.bfloat16


def test_unrounded_values_of_buffers_kept_as_bytes() -> None:
    x = normal(8, 16).float()

    def reference() -> list[torch.Tensor]:
        codes = torch.zeros(8, 16, dtype=torch.uint8)
        codes[:4].copy_(x[:4].to(torch.float8_e4m3fn).view(torch.uint8))
        codes[4:].copy_((x[4:] * 2).to(torch.float8_e4m3fn).view(torch.uint8))
        return [codes.view(torch.float8_e4m3fn), x]

    values, other = unrounded_codes(reference, reference())
    assert other is None
    assert values is not None
    assert torch.equal(values, torch.cat([x[:4], x[4:] * 2]))


def test_unrounded_values_that_cannot_be_had_are_none() -> None:
    codes = normal(8, 16).float().to(torch.float8_e4m3fn)

    def raises() -> list[torch.Tensor]:
        raise RuntimeError("no")

    assert unrounded_codes(raises, [codes]) == [None]
    assert unrounded_codes(lambda: [codes], [codes]) == [None]


def test_a_huge_oracle_does_not_fit() -> None:
    assert fits_in_float64([normal(4, 4), torch.arange(3)])
    assert fits_in_float64([])
    assert not fits_in_float64([torch.zeros(1).expand(1 << 45)])


def test_seeds_as_torch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The accelerator, too, where there is one; no other kind of device is asked."""
    seeded = []
    accelerator = SimpleNamespace(manual_seed_all=seeded.append)
    monkeypatch.setattr(seeding, "_accelerator", lambda: accelerator)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("asked a device that is not there"))
    with torch.random.fork_rng([]):
        seeding.seed_all(7)
        drawn = torch.rand(5)
        assert seeded == [7]
        torch.default_generator.manual_seed(7)
        assert torch.equal(torch.rand(5), drawn)


# -- what a wrong result looks like ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "index", "words"),
    [
        ((3, 4), (1, 2), "in group 1 of 3 (0 rows)"),  # one entry a group
        ((16, 4), (5, 0), "in group 2 of 3 (9 rows)"),  # one a row: the second group has none
        ((16, 4), (15, 0), "past the last group"),
        ((4, 16), (0, 4), "in group 0 of 3 (5 rows)"),  # rows along the last dimension
        ((12,), (11,), "in group 2 of 3 (9 rows)"),  # scales, four a group
        ((16,), (15,), "past the last group"),  # one a row
        ((7, 5), (0, 0), ""),
    ],
)
def test_a_wrong_element_s_group_is_named(shape: tuple[int, ...], index: tuple[int, ...], words: str) -> None:
    groups = jagged(torch.tensor([5, 5, 14], dtype=torch.int32), [torch.zeros(16, 4)])
    assert groups is not None
    mask = torch.zeros(shape, dtype=torch.bool)
    mask[index] = True
    assert groups.where(mask) == words


def test_several_groups_are_named_together() -> None:
    groups = jagged([2, 4, 6], [torch.zeros(8, 4)])
    assert groups is not None
    mask = torch.tensor([True, False, False, True, False, False, True, False])
    assert groups.where(mask) == "in groups 0, 1 of 3 and past the last group"
    assert jagged(None, []) is None


X = normal(32, 32).float()


def changed(rows: object = slice(None), columns: object = slice(None), to: torch.Tensor | float = 0.0) -> torch.Tensor:
    made = X.clone()
    made[rows, columns] = to  # type: ignore[index]
    return made


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (X.roll(1, 0), "looks shifted down by 1 row"),
        (X.roll(-2, 0), "looks shifted up by 2 rows"),
        (X.roll(1, 1), "looks shifted right by 1 column"),
        (X.roll(-1, 1), "looks shifted left by 1 column"),
        (X.t().clone(), "looks transposed"),
        (X.flip(0), "looks as if its rows were reversed"),
        (changed(columns=slice(28, 32)), "wrong are columns 28 to 31 of 32, and the others right"),
        (changed(columns=slice(3, None, 4)), "wrong are each 4th of 32 columns, from 3 on, and the others right"),
        (changed(columns=slice(7, 8)), "wrong are column 7 of 32, and the others right"),
        (changed(slice(5, 9)), "wrong are rows 5 to 8 of 32, and the others right"),
        (changed(slice(4, 28), to=X[4:28] * 1.5), "wrong are rows 4 to 27 of 32, and the others right"),
        (changed(slice(8, 16), to=X[8:16].roll(1, 0)),
         "wrong are rows 8 to 15 of 32, and the others right; there it looks shifted down by 1 row"),
        (changed(torch.arange(32), torch.arange(32).flip(0)), ""),
        (X + 1, ""),
        (torch.zeros_like(X), ""),
        (torch.full_like(X, torch.nan), ""),
    ],
)  # fmt: skip
def test_patterns(wrong: torch.Tensor, words: str) -> None:
    assert looks_like(wrong, X, limit=1e-6) == words


def test_a_vector_is_a_column() -> None:
    vector = X[0]
    late = torch.cat([vector[:30], 2 * vector[30:]])
    assert looks_like(vector.roll(1), vector, limit=1e-6) == "looks shifted down by 1 row"
    assert looks_like(late, vector, limit=1e-6) == "wrong are rows 30 to 31 of 32, and the others right"
    for shape in ((0, 4), (4,), (1, 1), (2, 2)):  # too small for a pattern
        assert looks_like(torch.ones(shape), torch.zeros(shape), 1e-6) == ""


def test_what_is_left_in_an_activation_s_gradient_is_not_due_in_a_parameter_s() -> None:
    """A row of one key in attention, of which eager has no error at all; and a parameter's row with that error."""
    oracle = normal(64, 48, seed=3).double()
    oracle[0] = 0
    eager = oracle.bfloat16()
    candidate = eager.clone()
    candidate[0] = 2.0**-8 * normal(48, seed=4)
    assert compare(candidate, eager, oracle, name="dq", gradient_of="argument").problem == ""
    assert "in row 0 of 64" in compare(candidate, eager, oracle, name="dw", gradient_of="parameter").problem
    candidate[0] *= 8
    assert "in row 0 of 64" in compare(candidate, eager, oracle, name="dq", gradient_of="argument").problem
