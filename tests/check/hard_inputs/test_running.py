"""Derived inputs end to end: correct operators are never accused, and the classic bugs are found."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from perfguard import Hard, derived
from perfguard.check.hard_inputs.derivation import Derivation, Part, derived_call
from perfguard.check.hard_inputs.search import run_hard
from perfguard.check.hard_inputs.values import FINITE
from perfguard.check.hard_inputs.verdict import judged
from perfguard.model.call import Call

SECONDS = 60.0  # enough for all derived inputs of so small calls


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return made.requires_grad_(grad)


def targets(rows: int, classes: int) -> torch.Tensor:
    return torch.randint(0, classes, (rows,), generator=torch.Generator().manual_seed(5))


# ---- correct operators, written otherwise than the reference


def my_softmax(x: torch.Tensor) -> torch.Tensor:
    e = (x.float() - x.float().amax(-1, keepdim=True)).exp()
    return (e * e.sum(-1, keepdim=True).reciprocal()).to(x.dtype)


def my_rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    scale = (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    return (wide * scale * w.float()).to(x.dtype)


def my_layer_norm(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    mean = wide.mean(-1, keepdim=True)
    centred = wide - mean
    return (centred * (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()).to(x.dtype)


def my_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    half = a.shape[1] // 2
    return (a[:, :half].float() @ b[:half].float() + a[:, half:].float() @ b[half:].float()).to(a.dtype)


def my_gelu(x: torch.Tensor) -> torch.Tensor:
    return (0.5 * x.float() * (1 + torch.erf(x.float() * 0.5**0.5))).to(x.dtype)


def my_cross_entropy(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    picked = wide.gather(1, t[:, None]).squeeze(1)
    return wide.logsumexp(1) - picked


def my_top_k(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Ties go to the later element, unlike torch's."""
    found = x.flip(-1).topk(2)
    return found.values, x.shape[-1] - 1 - found.indices


CORRECT: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[[torch.dtype], tuple[Any, ...]]]] = {
    "softmax": (my_softmax, lambda x: F.softmax(x, -1), lambda d: (normal(9, 130, dtype=d, grad=True),)),
    "rms_norm": (
        my_rms_norm,
        lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6),
        lambda d: (normal(17, 96, dtype=d, grad=True), normal(96, seed=1, dtype=d, grad=True)),
    ),
    "layer_norm": (
        my_layer_norm,
        lambda x: F.layer_norm(x, x.shape[-1:]),
        lambda d: (normal(33, 65, dtype=d, grad=True),),
    ),
    "matmul": (
        my_matmul,
        lambda a, b: a @ b,
        lambda d: (normal(33, 96, dtype=d, grad=True), normal(96, 40, seed=1, dtype=d, grad=True)),
    ),
    "gelu": (my_gelu, F.gelu, lambda d: (normal(300, dtype=d, grad=True),)),
    "cross_entropy": (
        my_cross_entropy,
        lambda x, t: F.cross_entropy(x.float(), t, reduction="none"),
        lambda d: (normal(12, 50, dtype=d, grad=True), targets(12, 50)),
    ),
    "top_k": (my_top_k, lambda x: tuple(x.topk(2)), lambda d: (normal(12, 50, dtype=d),)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_operator_is_not_accused(name: str, dtype: torch.dtype) -> None:
    fn, reference, inputs = CORRECT[name]
    found = run_hard(Call(fn, inputs(dtype), reference), SECONDS)
    assert found.problem == ""
    assert found.ran > 10
    assert found.waiting == 0


# ---- wrong ones, each right on ordinary inputs


def overflowing_softmax(x: torch.Tensor) -> torch.Tensor:
    return x.exp() / x.exp().sum(-1, keepdim=True)


def zero_starting_softmax(x: torch.Tensor) -> torch.Tensor:
    """The running maximum starts at 0, and what lies far below it is lost."""
    m = x.amax(-1, keepdim=True).clamp(min=0)
    e = (x - m).exp()
    return e / e.sum(-1, keepdim=True)


def flat_softmax(x: torch.Tensor) -> torch.Tensor:
    """Reads its input as if rows lay one behind the other."""
    return F.softmax(torch.as_strided(x, x.shape, (x.shape[1], 1)), -1)


def norm_without_eps(x: torch.Tensor) -> torch.Tensor:
    return x * x.square().mean(-1, keepdim=True).rsqrt()


def softmax_of_whole_blocks(x: torch.Tensor) -> torch.Tensor:
    """The last columns, past the last block of 16, count as whole: right where sizes are multiples."""
    n = x.shape[1] // 16 * 16 or x.shape[1]
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e[:, :n].sum(-1, keepdim=True)


def nan_hiding_relu(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, 0.0)


WRONG: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...], str]] = {
    "overflow": (overflowing_softmax, lambda x: F.softmax(x, -1), (normal(8, 64),), "2^"),
    "maximum from 0": (zero_starting_softmax, lambda x: F.softmax(x, -1), (normal(8, 64),), "argument 0"),
    "strides": (flat_softmax, lambda x: F.softmax(x, -1), (normal(8, 64),), "argument 0"),
    "eps": (
        norm_without_eps,
        lambda x: x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt(),
        (normal(8, 64),),
        "row",
    ),
    "tail": (softmax_of_whole_blocks, lambda x: F.softmax(x, -1), (normal(8, 64),), "cut to"),
    "NaN": (nan_hiding_relu, torch.relu, (normal(8, 64),), "NaN"),
}


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
    sizes_alone = Hard(without=["values", "non-finite", "layouts"], reason="-")
    call = Call(OverwrittenCache(), (normal(8, 64),), lambda x: x / x.square().sum(), hard=sizes_alone)
    call.fn(*call.args)
    problem = run_hard(call, SECONDS).problem
    assert problem.startswith("the given inputs, once more after ")


# Each beside what is like it and right: a kernel that reads one of two equal halves, and a domain that ends.


def test_values_that_stand_there_twice_still_do() -> None:
    angles = normal(6, 8)
    for both in (torch.cat([angles, angles], -1), angles.repeat_interleave(2, -1)):
        for kind in FINITE:
            made = derived(both, f"row 1 {kind}")
            assert torch.equal(made[:, :8], made[:, 8:]) or torch.equal(made[:, ::2], made[:, 1::2])
            assert kind == "negative zero" or not torch.equal(made, both)
    assert not torch.equal(derived(torch.ones(3, 8), "outlier 2^10 at first"), torch.full((3, 8), 2.0**10))


def test_where_the_reference_makes_nan_of_finite_inputs_any_result_is_right() -> None:
    call = Call(lambda p: p.clamp_min(1e-30).log(), (normal(8, 64).softmax(-1),), torch.log)
    found = run_hard(call, SECONDS)
    assert found.problem == ""
    assert found.left_out["the reference makes NaN of finite inputs"] > 0


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_operator_is_found_and_its_input_is_small(name: str) -> None:
    fn, reference, args, words = WRONG[name]
    problem = run_hard(Call(fn, args, reference), SECONDS).problem
    assert problem.startswith("hard input")
    assert words in problem
    assert "perfguard.derived(" in problem
    assert problem.count(",") < 20  # one or two steps, not the dozen that were tried together


def test_an_operator_that_raises_on_values_is_wrong_and_one_that_refuses_a_layout_is_not() -> None:
    def refuses_zeros(x: torch.Tensor) -> torch.Tensor:
        if not x.any():
            raise ValueError("nothing to scale by")
        return F.softmax(x, -1)

    def refuses_layouts(x: torch.Tensor) -> torch.Tensor:
        if not x.is_contiguous():
            raise ValueError("not contiguous")
        return F.softmax(x, -1)

    found = run_hard(Call(refuses_zeros, (normal(8, 64),), lambda x: F.softmax(x, -1)), SECONDS)
    assert 'argument 0 (zero): raises ValueError: nothing to scale by; made again by perfguard.derived(x0, "zero")' in (
        found.problem
    )
    found = run_hard(Call(refuses_layouts, (normal(8, 64),), lambda x: F.softmax(x, -1)), SECONDS)
    assert found.problem == ""
    assert found.left_out["the candidate raises"] > 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("error", [AttributeError, NameError, UnboundLocalError])
def test_a_slip_is_no_refusal_of_a_size(error: type[Exception]) -> None:
    def slips(x: torch.Tensor) -> torch.Tensor:
        if x.numel() == 0:
            raise error("'NoneType' object has no attribute 'zero_'")
        return F.softmax(x, -1)

    found = run_hard(Call(slips, (normal(8, 64),), lambda x: F.softmax(x, -1)), SECONDS)
    assert f"raises {error.__name__}: 'NoneType' object" in found.problem
    assert "cut to 0" in found.problem


def test_a_warning_of_numpy_is_no_refusal() -> None:
    """As Triton's interpreter gives them, under `-W error`."""

    def warns(x: torch.Tensor) -> torch.Tensor:
        if x.isinf().any():
            warnings.warn("overflow encountered", RuntimeWarning, stacklevel=1)
        return F.softmax(x, -1)

    found = run_hard(Call(warns, (normal(8, 64),), lambda x: F.softmax(x, -1)), SECONDS)
    assert found.problem == ""
    assert found.left_out["the candidate raises"] == 0


@pytest.mark.parametrize("columns", [64, 1024])
def test_what_lies_a_column_past_an_input_is_nobodys_value(columns: int) -> None:
    """A column past the end of a transposed input is as many elements as the input has rows."""

    def one_too_far(x: torch.Tensor) -> torch.Tensor:
        wide = x.as_strided((x.shape[0], x.shape[1] + 1), x.stride())  # torch raises where nothing lies there
        return x + 0 * wide[:, -1:]

    derivation = Derivation((Part("layouts", {0: "transposed"}),))
    call = Call(one_too_far, (normal(1024, columns + 8)[:, :columns],), lambda x: x + 0)
    outcome = judged(derived_call(call, derivation), derivation)
    assert outcome.left_out == ""
    assert "are NaN or Inf unlike the oracle's" in outcome.problem


def test_an_empty_input_has_an_address_that_can_be_read() -> None:
    """torch gives address 0 for it, and a read there ends the process."""

    def first_byte(x: torch.Tensor) -> torch.Tensor:
        address = x.data_ptr()
        return torch.full((x.shape[0], 1), float(ctypes.c_uint8.from_address(address).value) if address else 0.0)

    derivation = Derivation((Part("sizes", {0: "dim 1 cut to 0"}),))
    call = Call(first_byte, (normal(3, 8),), lambda x: torch.zeros(x.shape[0], 1))
    outcome = judged(derived_call(call, derivation), derivation)
    assert outcome.problem.startswith("output: RMSE ")


def test_a_write_into_an_empty_result_is_out_of_bounds() -> None:
    """torch gives address 0 for it, too, and a write there ends the process."""

    def writes_one(x: torch.Tensor) -> torch.Tensor:
        made = x.new_empty(x.shape)
        if not x.numel():
            ctypes.c_uint8.from_address(made.data_ptr()).value = 0
        return made.copy_(x)

    derivation = Derivation((Part("sizes", {0: "dim 1 cut to 0"}),))
    call = Call(writes_one, (normal(3, 8),), lambda x: x + 0)
    outcome = judged(derived_call(call, derivation), derivation)
    assert outcome.problem.startswith("out of bounds: float32[3,0], new_empty at ")


def test_a_cut_result_of_another_dtype_is_wrong() -> None:
    """Of another shape, the reference may mean the cut differently; of another dtype it may not."""

    def narrow_without_rows(x: torch.Tensor) -> torch.Tensor:
        return (x if len(x) else x.half()).sum()

    derivation = Derivation((Part("sizes", {0: "dim 0 cut to 0"}),))
    call = Call(narrow_without_rows, (normal(3, 8),), lambda x: x.sum())
    outcome = judged(derived_call(call, derivation), derivation)
    assert outcome.problem == "output: is torch.float16, the reference's torch.float32"
