"""Derived inputs end to end: correct operators are never accused, and the classic bugs are found."""

from __future__ import annotations

import ctypes
import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from perfguard import Hard, derived, ids
from perfguard.check.correctness import check
from perfguard.check.hard_inputs.comparison import Outcome
from perfguard.check.hard_inputs.derivation import LAYOUTS, Derivation, Part, derived_call, layouts_of
from perfguard.check.hard_inputs.search import HardResult, run_hard
from perfguard.check.hard_inputs.sizes import Kept, kept_by
from perfguard.check.hard_inputs.values import FINITE
from perfguard.check.hard_inputs.verdict import judged
from perfguard.check.numerics.oracle import OrderOfEqual
from perfguard.model.call import HARD_KINDS, Call
from perfguard.model.errors import UsageError
from tests.check.hard_inputs.operators import BUGGY, FOREIGN, normal

SECONDS = 60.0  # enough for all derived inputs of so small calls
BUDGET = 1.0  # of a case where nothing is timed


def softmax(x: torch.Tensor) -> torch.Tensor:
    return F.softmax(x, -1)


def plain(*shape: int) -> torch.Tensor:
    return normal(*shape, seed=0, grad=False)


def found(fn: Callable[..., Any], *args: Any, reference: Callable[..., Any], **options: Any) -> HardResult:
    return run_hard(Call(fn, args, reference, **options), SECONDS)


# -- the two figures that derived inputs stand for ---------------------------------------------------------------------


def test_there_are_enough_of_both() -> None:
    assert len(FOREIGN) >= 40
    assert len(BUGGY) >= 10


@pytest.mark.filterwarnings("ignore:var")
@pytest.mark.parametrize("name", FOREIGN)
def test_a_correct_operator_of_others_is_not_accused(name: str) -> None:
    fn, reference, inputs = FOREIGN[name]
    seed = [*FOREIGN].index(name) % 3
    call = Call(fn, inputs(seed), reference, seed=seed)
    assert check(call).wrong == []
    result = run_hard(call, 0.2, rotation=seed)
    assert result.problem == ""
    assert result.ran


@pytest.mark.parametrize("name", BUGGY)
def test_a_planted_bug_that_given_inputs_do_not_show_is_found_whatever_the_seed(name: str) -> None:
    fresh, reference, inputs, words = BUGGY[name]
    for seed in range(8):
        call = Call(fresh(), inputs(seed), reference, seed=seed)
        if seed == 0:
            assert check(call).wrong == []
        problem = run_hard(call, BUDGET).problem
        assert problem.startswith("hard input"), seed
        if any(f'without=["{kind}"]' in problem for kind in ("sequences", "modes", "dtypes")):
            continue  # called otherwise: it may show, too, and by turns may be the first
        assert "perfguard.derived(" in problem
        assert words in problem
        assert problem.count(",") < 20  # one or two steps, not the dozen that were tried together


def layer_norm(x: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)  # of a row of equal values: some roundings, which are then magnified
    return centred * (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()


@pytest.mark.parametrize(
    ("fn", "reference", "shape"),
    [
        (lambda x: F.softmax(x.double(), -1).float(), softmax, (9, 130)),
        (layer_norm, lambda x: F.layer_norm(x, x.shape[-1:]), (33, 65)),
    ],
)
def test_all_derived_inputs_of_a_small_call_fit_and_are_right(
    fn: Callable[..., Any], reference: Callable[..., Any], shape: tuple[int, int]
) -> None:
    result = found(fn, normal(*shape, seed=0), reference=reference)
    assert (result.problem, result.waiting) == ("", {})
    assert result.ran.total() > 10


# -- the domain, and what a candidate may refuse -----------------------------------------------------------------------


class OverwrittenCache:
    """Scales by size; each new size takes the place of the first one, too."""

    def __init__(self) -> None:
        self.known: dict[torch.Size, torch.Tensor] = {}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        new = x.shape not in self.known
        scale = self.known.setdefault(x.shape, x.square().sum())
        if new:
            self.known[next(iter(self.known))] = scale
        return x / scale


def test_a_cache_that_other_sizes_overwrite_is_found_by_the_given_inputs_once_more() -> None:
    sizes_alone = Hard(without=[kind for kind in HARD_KINDS if kind != "sizes"], reason="-")
    call = Call(OverwrittenCache(), (plain(8, 64),), lambda x: x / x.square().sum(), hard=sizes_alone)
    call.fn(*call.args)
    assert run_hard(call, SECONDS).problem.startswith("the given inputs, once more after ")


def test_a_cache_in_a_closure_that_the_first_call_fills_keeps_no_size() -> None:
    cache: dict[torch.dtype, torch.Tensor] = {}

    def mean(x: torch.Tensor) -> torch.Tensor:
        return x.sum(-1) * cache.setdefault(x.dtype, torch.tensor(1 / x.shape[-1]))

    call = Call(mean, (plain(8, 64),), lambda x: x.mean(-1))
    kept = kept_by(call)
    assert check(call).wrong == []
    assert "dim 1 " in run_hard(call, SECONDS, kept=kept).problem
    assert run_hard(call, SECONDS).problem == ""  # for all it knows that is a weight


LUMA = torch.tensor([0.2989, 0.587, 0.114])


def luma(x: torch.Tensor) -> torch.Tensor:
    return (x * LUMA[:, None]).sum(-2, keepdim=True)


def test_a_size_of_a_global_tensor_does_not_change() -> None:
    """One channel would be broadcast over the weights of three, where triton-augment returns a gray image as it is."""

    def by_channel(x: torch.Tensor) -> torch.Tensor:
        return x if x.shape[-2] == 1 else torch.einsum("...cn,c->...n", x, LUMA.to(x.dtype)).unsqueeze(-2)

    def of_short_rows(x: torch.Tensor) -> torch.Tensor:
        return luma(torch.cat((x[..., :32], x[..., 32:] * 0), -1))

    args = (plain(4, 3, 20),)
    assert run_hard(Call(by_channel, args, lambda x: luma(x)), SECONDS).problem == ""
    assert "dim 2 " in run_hard(Call(of_short_rows, args, lambda x: luma(x)), SECONDS).problem


def test_what_functions_keep() -> None:
    weight = plain(2, 2)

    def even(n: int) -> Any:
        return n == 0 or odd(n - 1)

    def odd(n: int, base: int = 7) -> Any:  # each keeps the other
        return n != base and even(n - 1)

    def scaled(x: torch.Tensor, by: torch.Tensor = weight) -> torch.Tensor:
        return x * by

    for fn, tensors, numbers in (
        (even, False, {7}),
        (partial(odd, base=9), False, {7, 9}),
        (scaled, True, set()),
        (lambda x: scaled(x), True, set()),
        (partial(partial(torch.mul, weight), out=None), True, set()),
        (partial(torch.topk, k=3, largest=True), False, {3}),
    ):
        assert kept_by(Call(fn, (), torch.relu)) == Kept(tensors, frozenset(numbers))


def test_where_the_reference_makes_nan_of_finite_inputs_any_result_is_right() -> None:
    result = found(lambda p: p.clamp_min(1e-30).log(), plain(8, 64).softmax(-1), reference=torch.log)
    assert result.problem == ""
    assert result.left_out["the reference makes NaN of finite inputs"] > 0


def refusing(when: Callable[[torch.Tensor], bool], error: Exception) -> Callable[[torch.Tensor], torch.Tensor]:
    def fn(x: torch.Tensor) -> torch.Tensor:
        if when(x):
            raise error
        return F.softmax(x, -1)

    return fn


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("error", [AttributeError, NameError, UnboundLocalError, ValueError])
def test_a_slip_is_no_refusal_of_a_size(error: type[Exception]) -> None:
    fn = refusing(lambda x: x.numel() == 0, error("'NoneType' object has no attribute 'zero_'"))
    problem = found(fn, plain(8, 64), reference=softmax).problem
    if error is ValueError:
        assert problem == ""
    else:
        assert f"raises {error.__name__}: 'NoneType' object" in problem
        assert "cut to 0" in problem


@pytest.mark.parametrize(("factor", "right"), [(1 + 2**-10, True), (1 - 2**-10, True), (1 + 2**-6, False)])
def test_an_overflow_by_a_rounding_is_right(factor: float, right: bool) -> None:
    """512 - 1/4 times 2^7 is the largest float16."""
    x = torch.full((4, 8), 512 - 0.25, dtype=torch.float16)
    call = Call(lambda x: (x.float() * factor).half(), (x,), lambda x: x * 1)
    outcome = judged(call, Derivation((Part("values", {0: "times 2^7"}),)))
    assert (outcome.problem == "", outcome.left_out) == (right, "")


def test_an_operator_that_raises_on_values_is_wrong_and_one_that_refuses_a_layout_is_not() -> None:
    zeros = refusing(lambda x: not x.any(), ValueError("nothing to scale by"))
    problem = found(zeros, plain(8, 64), reference=softmax).problem
    told = 'argument 0 (zero): raises ValueError: nothing to scale by; made again by perfguard.derived(x0, "zero")'
    assert told in problem
    layouts = refusing(lambda x: not x.is_contiguous(), ValueError("not contiguous"))
    result = found(layouts, plain(8, 64), reference=softmax)
    assert result.problem == ""
    assert result.left_out["the candidate raises"] > 0


def test_a_warning_of_numpy_is_no_refusal() -> None:
    """As Triton's interpreter gives them, under `-W error`."""

    def warns(x: torch.Tensor) -> torch.Tensor:
        if x.isinf().any():
            warnings.warn("overflow encountered", RuntimeWarning, stacklevel=1)
        return F.softmax(x, -1)

    result = found(warns, plain(8, 64), reference=softmax)
    assert (result.problem, result.left_out["the candidate raises"]) == ("", 0)


# -- memory ------------------------------------------------------------------------------------------------------------


def of_one(fn: Callable[..., Any], x: torch.Tensor, reference: Callable[..., Any], kind: str, step: str) -> Outcome:
    """The outcome of one derivation of the only argument."""
    derivation = Derivation((Part(kind, {0: step}),))
    return judged(derived_call(Call(fn, (x,), reference), derivation), derivation)


@pytest.mark.parametrize("columns", [64, 1024])
def test_what_lies_a_column_past_an_input_is_nobodys_value(columns: int) -> None:
    """A column past the end of a transposed input is as many elements as the input has rows."""

    def one_too_far(x: torch.Tensor) -> torch.Tensor:
        wide = x.as_strided((x.shape[0], x.shape[1] + 1), x.stride())  # torch raises where nothing lies there
        return x + 0 * wide[:, -1:]

    x = plain(1024, columns + 8)[:, :columns]
    outcome = of_one(one_too_far, x, lambda x: x + 0, "layouts", "transposed")
    assert outcome.left_out == ""
    assert "elements are NaN or Inf of finite inputs" in outcome.problem


def test_an_empty_input_and_an_empty_result_have_addresses_between_guards() -> None:
    """torch gives address 0 for both, and an access there ends the process."""

    def first_byte(x: torch.Tensor) -> torch.Tensor:
        address = x.data_ptr()
        return torch.full((x.shape[0], 1), float(ctypes.c_uint8.from_address(address).value) if address else 0.0)

    def writes_one(x: torch.Tensor) -> torch.Tensor:
        made = x.new_empty(x.shape)
        if not x.numel():
            ctypes.c_uint8.from_address(made.data_ptr()).value = 0
        return made.copy_(x)

    read = of_one(first_byte, plain(3, 8), lambda x: torch.zeros(x.shape[0], 1), "sizes", "dim 1 cut to 0")
    assert read.problem.startswith("output: RMSE ")
    written = of_one(writes_one, plain(3, 8), lambda x: x + 0, "sizes", "dim 1 cut to 0")
    assert written.problem.startswith("out of bounds: float32[3,0], new_empty at ")


@pytest.mark.parametrize("whose", ["candidate", "reference"])
def test_an_input_for_which_memory_is_short_is_left_out(whose: str) -> None:
    """On a CPU torch raises a plain RuntimeError then."""

    def hungry(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(1 << 50 if len(x) != 8 else len(x), 64).copy_(x)

    fn, reference = (hungry, torch.clone) if whose == "candidate" else (torch.clone, hungry)
    result = found(fn, plain(8, 64), reference=reference)
    assert result.problem == ""
    assert result.left_out["memory is short"] > 0


def test_a_cut_result_of_another_dtype_is_wrong() -> None:
    """Of another shape, the reference may mean the cut differently; of another dtype it may not."""

    def narrow_without_rows(x: torch.Tensor) -> torch.Tensor:
        return (x if len(x) else x.half()).sum()

    outcome = of_one(narrow_without_rows, plain(3, 8), torch.sum, "sizes", "dim 0 cut to 0")
    assert outcome.problem == "output: dtype float16 for float32, which the reference has"


# -- derived tensors ---------------------------------------------------------------------------------------------------


def test_values_that_stand_there_twice_still_do() -> None:
    angles = plain(6, 8)
    for both in (torch.cat([angles, angles], -1), angles.repeat_interleave(2, -1)):
        for kind in FINITE:
            made = derived(both, f"row 1 {kind}")
            assert torch.equal(made[:, :8], made[:, 8:]) or torch.equal(made[:, ::2], made[:, 1::2])
            assert kind == "negative zero" or not torch.equal(made, both)
    assert not torch.equal(derived(torch.ones(3, 8), "outlier 2^10 at first"), torch.full((3, 8), 2.0**10))
    with pytest.raises(UsageError, match="is no kind of values"):
        derived(angles, "twisted")


def test_another_size_keeps_what_values_mean() -> None:
    """Pairs stay pairs, what rises goes on, no two rows become equal, and signs stay."""
    angles = plain(6, 8).abs() + 1
    halves, neighbours = torch.cat([angles, angles], -1), angles.repeat_interleave(2, -1)
    for width in (8, 40):
        assert torch.equal(*derived(halves, f"dim 1 {'cut' if width < 16 else 'grown'} to {width}").chunk(2, -1))
        made = derived(neighbours, f"dim 1 {'cut' if width < 16 else 'grown'} to {width}")
        assert torch.equal(made[:, ::2], made[:, 1::2])
        assert len(made[0].unique()) == width // 2
    with pytest.raises(UsageError, match="in pairs"):
        derived(halves, "dim 1 cut to 9")
    grown = derived(angles, "dim 0 grown to 20")
    assert torch.equal(grown[:6], angles)
    assert grown.min() > 0
    assert len(grown.unique(dim=0)) == 20
    assert torch.equal(derived(torch.arange(4.0), "dim 0 grown to 6"), torch.tensor([0.0, 1, 2, 3, 3, 3]))
    codes = angles.to(torch.float8_e4m3fn)
    assert torch.equal(derived(codes, "dim 0 grown to 9").view(torch.uint8)[6:], codes.view(torch.uint8)[:3])


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name not in ("expanded", "conjugate view")])
def test_layouts_keep_the_values(name: str) -> None:
    # One byte an element: 4 GiB of addresses, of which a few pages are used.
    given = torch.arange(3 * 1 * 2 * 5, dtype=torch.uint8).view(3, 1, 2, 5)
    made = derived(given, name)
    assert torch.equal(made, given)
    assert (made.stride(), made.storage_offset()) != (given.stride(), given.storage_offset())
    if name == "far apart":  # wrapped offsets stay inside
        last = 2 * made.stride(0)
        assert last >= 2**31
        assert made.storage_offset() + last - 2**32 >= 0
        assert made.storage_offset() + last + 10 <= made.untyped_storage().nbytes()


def test_rows_are_far_apart_on_a_gpu_with_room_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnGpu(torch.Tensor):
        @property
        def device(self) -> torch.device:  # type: ignore[override]
            return torch.device("cuda")

    given = torch.zeros(4, 8, dtype=torch.bfloat16).as_subclass(OnGpu)
    for spare, possible in ((1, True), (0, False)):
        monkeypatch.setattr("perfguard.check.hard_inputs.derivation.free_bytes", lambda _, by=spare: 2**33 * 4 + by)
        assert ("far apart" in layouts_of(given, False)) is possible
        assert "far apart" not in layouts_of(given[:1], False)
        assert "far apart" not in layouts_of(torch.zeros(4, 8), False)


# -- ties --------------------------------------------------------------------------------------------------------------

CHOICES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "topk": lambda x: x.topk(2).indices,
    "topk of rows": lambda x: x.topk(2, dim=0).indices,
    "argmax": lambda x: x.argmax(-1),
    "argmax kept": lambda x: x.argmax(dim=0, keepdim=True),
    "argmax of all": torch.argmax,
    "argmax of all kept": lambda x: x.argmax(keepdim=True),
    "argmin of all": torch.argmin,
    "max": lambda x: x.max(-1).indices,
    "min": lambda x: x.min(0).indices,
    "argsort": lambda x: x.argsort(-1, descending=True),
    "sort by columns": lambda x: x.sort(dim=0).indices,
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_differs_where_elements_are_equal_and_nowhere_else(name: str) -> None:
    choose, apart = CHOICES[name], plain(4, 6)
    with OrderOfEqual(last=True):
        assert torch.equal(choose(apart), usual := choose(apart))
        tied = choose(torch.ones(4, 6))
    assert torch.equal(usual, choose(apart))
    assert tied.shape == usual.shape
    assert not torch.equal(tied, choose(torch.ones(4, 6)))


def test_the_first_of_equal_is_chosen_whatever_topk_would_choose() -> None:
    x = torch.ones(3, 70)
    with OrderOfEqual(last=False):
        assert x.topk(4).indices.tolist() == [[0, 1, 2, 3]] * 3
    with OrderOfEqual(last=True):
        assert x.topk(4).indices.tolist() == [[69, 68, 67, 66]] * 3
        assert x.sort(stable=True).indices.tolist() == [[*range(70)]] * 3


def test_an_order_that_is_said_to_be_stable_is_not_excused() -> None:
    """A permutation of tokens by expert that loses an expert's rows past 32."""

    def short(experts: torch.Tensor) -> torch.Tensor:
        order = experts.flatten().argsort(stable=True)
        full = experts.flatten().bincount(minlength=8).amax() > 32
        return order.roll(1) if full else order

    experts = torch.randint(8, (160,), generator=torch.Generator().manual_seed(0))
    call = Call(short, (ids(experts, 8),), lambda experts: experts.flatten().argsort(stable=True))
    assert check(call).wrong == []
    assert "all 7" in run_hard(call, SECONDS).problem


def test_any_of_equal_scores_may_be_chosen() -> None:
    """bfloat16 has many equal scores, and torch.topk chooses among them as it likes."""
    x = normal(512, 64, seed=1, grad=False, dtype=torch.bfloat16)

    def ordered(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = x.sort(dim=-1, descending=True, stable=True)
        return found.values[:, :4], found.indices[:, :4]

    call = Call(ordered, (x,), lambda x: tuple(x.topk(4)))
    assert check(call).wrong == []
    assert run_hard(call, SECONDS).problem == ""

    def wrong(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, indices = ordered(x)
        indices[3, 0] = indices[3, 3]
        return values, indices

    assert check(Call(wrong, (x,), lambda x: tuple(x.topk(4)))).wrong


def test_a_probability_of_zero_has_no_logarithm_and_no_less_is_near() -> None:
    """0 · log 0 is 0 in F.kl_div."""

    def product(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        return (p * (p.log() - F.log_softmax(x, -1))).sum(-1)

    def reference(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        return F.kl_div(F.log_softmax(x, -1), p, reduction="none").sum(-1)

    x, p = plain(8, 40), torch.softmax(normal(8, 40, seed=2, grad=False), -1)
    assert "zero" in found(product, x, p, reference=reference).problem


def test_a_mask_may_be_all_zero() -> None:
    def mean(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (x * mask).sum(-1) / mask.sum(-1).clamp(min=1)

    x, mask = plain(12, 32), (plain(12, 32) > 0).float()
    assert found(mean, x, mask, reference=mean).problem == ""
    hard = Hard(without=[kind for kind in HARD_KINDS if kind != "values"], reason="for this test")
    wrong = found(lambda x, mask: (x * mask).sum(-1) / mask.sum(-1), x, mask, reference=mean, hard=hard)
    assert "NaN or Inf of finite inputs" in wrong.problem


def test_values_and_gradients_stay() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, 2.0]], requires_grad=True)
    with OrderOfEqual(last=True):
        values, indices = x.topk(1)
        (gradient,) = torch.autograd.grad(values.sum(), x)
    assert (values.item(), indices.item(), gradient.tolist()) == (3, 2, [[0, 0, 1, 0]])


def test_a_router_whose_scores_are_saturated_may_choose_any_of_them() -> None:
    def other(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.sigmoid(x @ w).flip(-1).topk(2)
        return chosen.values, w.shape[1] - 1 - chosen.indices

    generator = torch.Generator().manual_seed(1)
    x, w = torch.randn(16, 32, generator=generator) * 30, torch.randn(32, 8, generator=generator)
    result = found(other, x, w, reference=lambda x, w: tuple(torch.topk(torch.sigmoid(x @ w), 2)))
    assert result.problem == ""
    assert result.ran


def test_a_wrong_choice_is_found_still() -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        return x.nan_to_num(0.0).topk(2).indices.clamp(max=len(x[0]) - 2)

    x = torch.tensor([[3.0, 2.0, 1.0, 0.0], [1.0, 4.0, 3.0, 0.0]])
    assert found(wrong, x, reference=lambda x: x.topk(2).indices).problem

    def wrong_beyond_eight(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, experts = x.softmax(-1).topk(2)
        return weights, experts.clamp(max=8)

    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
    assert "output 1" in found(wrong_beyond_eight, x, reference=lambda x: tuple(x.softmax(-1).topk(2))).problem


# -- codes of infinities -----------------------------------------------------------------------------------------------


def fp8_rows(x: torch.Tensor, due: str = "nan") -> tuple[torch.Tensor, torch.Tensor]:
    """fp8 codes and scales of rows. Those of a row with an infinity are NaN; `largest`: the codes of its sign; `zeros`:
    all its codes are 0."""
    amax = x.float().abs().amax(-1, keepdim=True)
    lost = ~amax.isfinite()
    scale = 448 / amax.masked_fill(lost, 1).clamp(min=1e-12)
    codes = (x.float() * scale).clamp(-448, 448)
    wanted = {"nan": codes * math.nan, "largest": torch.where(x.isinf(), x.sign().float() * 448, 0), "zeros": 0 * scale}
    return codes.where(~lost, wanted[due]).to(torch.float8_e4m3fn), scale.masked_fill(lost, math.nan)


@pytest.mark.parametrize(("due", "right"), [("nan", True), ("largest", True), ("zeros", False)])
def test_fp8_codes_of_a_row_with_an_infinity_are_of_nan_or_of_the_largest_number(due: str, right: bool) -> None:
    outcome = of_one(partial(fp8_rows, due=due), plain(4, 32), fp8_rows, "values", "row 1 inf at first")
    assert (outcome.problem == "") == right
    assert (outcome.left_out == "") == (due != "largest")


def test_fp8_codes_of_the_largest_number_may_be_rounded_otherwise_by_a_step() -> None:
    def rounded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        codes, scale = fp8_rows(x, "largest")
        return (codes.view(torch.uint8) + torch.eye(4, 32, dtype=torch.uint8)[:1]).view(codes.dtype), scale

    assert of_one(rounded, plain(4, 32), fp8_rows, "values", "row 1 inf at first").left_out
