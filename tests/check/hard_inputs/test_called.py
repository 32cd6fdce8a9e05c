"""Given inputs that are called otherwise: each fault is found and named, and a correct twin stays quiet."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from perfguard import Hard
from perfguard.check.hard_inputs.called import called_parts
from perfguard.check.hard_inputs.search import HardResult, judge_again, run_hard
from perfguard.check.hard_inputs.state import State
from perfguard.model.call import HARD_KINDS, Call
from tests.check.hard_inputs.operators import normal

SECONDS = 60.0  # enough for everything of so small calls


def found(kinds: str, fn: Any, args: tuple[Any, ...], reference: Any, **options: Any) -> HardResult:
    """What derived inputs of one kind, or of some, show."""
    others = Hard(without=[each for each in HARD_KINDS if each not in kinds.split(", ")], reason="one kind at a time")
    return run_hard(Call(fn, args, reference, hard=others, **options), SECONDS)


def x(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> torch.Tensor:
    return normal(*(shape or (8, 16)), seed=1, dtype=dtype, grad=grad)


# -- state beside the result -------------------------------------------------------------------------------------------


class Scaled(nn.Module):
    """Divides by the largest magnitude so far, and counts its calls."""

    largest: torch.Tensor

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.register_buffer("largest", torch.zeros(16))
        self.calls, self.fault = 0, fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = x.detach()[: len(x) // 2] if self.fault == "half" else x.detach()
        if self.training or self.fault == "in eval()":
            self.largest.copy_(self.largest.maximum(seen.abs().amax(0)))
            self.calls += self.fault != "uncounted"
        return x / 2


class Meter:
    """No module, but called like one."""

    def __init__(self, fault: bool) -> None:
        self.total, self.fault = torch.zeros(()), fault

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.total = self.total + (x.abs() if self.fault else x).sum().detach()
        return x * 2


@pytest.mark.parametrize(
    ("kind", "fault", "words"),
    [
        ("state", "half", "state beside the result: buffer largest after the call: "),
        ("state", "uncounted", "attribute calls after the call: 1 of 1 elements differ"),
        ("modes", "in eval()", "in eval() without grad: buffer largest after the call: "),
    ],
)
def test_state_of_a_module(kind: str, fault: str, words: str) -> None:
    assert words in found(kind, Scaled(fault), (x(),), Scaled()).problem
    assert (result := found(kind, Scaled(), (x(),), Scaled())).problem == ""
    assert result.ran[kind]


class Largest(Scaled):
    """Keeps the largest magnitude of all calls; `last`: of the last one, which is the same after one call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        now = x.detach().abs().amax(0)
        self.largest.copy_(now if self.fault == "last" else self.largest.maximum(now))
        return x * 2


def test_state_that_a_call_writes_without_a_change() -> None:
    mine, theirs = Largest("last"), Largest()
    for side in (mine, theirs):  # as a check has called them
        side(x())
    problem = found("sequences", mine, (x(grad=False),), theirs).problem
    assert "while a call on other values is made: buffer largest after the call: " in problem
    assert found("sequences", Largest(), (x(grad=False),), theirs).problem == ""


def test_state_of_an_object_that_a_function_binds() -> None:
    assert "attribute total after the call" in found("state", Meter(True), (x(),), Meter(False)).problem
    assert found("state", Meter(False), (x(),), Meter(False)).ran["state"]
    assert found("state", Meter(False).__call__, (x(),), lambda x: x * 2).ran == {}  # nobody says what is right


def test_modules_are_left_as_they_were() -> None:
    mine, theirs = nn.BatchNorm1d(16), nn.BatchNorm1d(16)
    layers = [nn.Sequential(nn.Linear(16, 16), norm) for norm in (mine, theirs)]
    layers[1].load_state_dict(layers[0].state_dict())
    before = copy.deepcopy([dict(layer.named_parameters()) for layer in layers])
    places = [each.data_ptr() for layer in layers for each in layer.parameters()]
    for kind in ("state", "sequences", "modes", "dtypes"):
        assert (result := found(kind, layers[0], (x(),), layers[1])).problem == "", kind
        assert result.ran[kind] or kind == "dtypes"  # torch's own norm does not mix any
    for layer, saved in zip(layers, before, strict=True):
        assert layer.training
        assert all(each.requires_grad and each.dtype is torch.float32 for each in layer.parameters())
        assert all(torch.equal(value, saved[name]) for name, value in layer.named_parameters())
    assert places == [each.data_ptr() for layer in layers for each in layer.parameters()]


# -- sequences ---------------------------------------------------------------------------------------------------------


class Kept(nn.Module):
    """A product with a weight that is kept in another layout, as long as `key` says that it is the same."""

    def __init__(self, key: Callable[[torch.Tensor], Any], *, only_without_grad: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(normal(16, 16, seed=7, grad=False))
        self._key, self._known, self._kept = key, None, self.weight.detach()
        self._only = only_without_grad

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() and self._only:
            return x @ self.weight.T
        key = self._key(self.weight)
        if self._known != key:
            self._known, self._kept = key, self.weight.detach().clone()
            self._held = self.weight.detach()  # While it lives, no other weight has its address.
        weight = self._kept if self._only else self._kept + (self.weight - self.weight.detach())
        return x @ weight.T


def linear() -> nn.Module:
    layer = nn.Linear(16, 16, bias=False)
    layer.weight.data = normal(16, 16, seed=7, grad=False)
    return layer


def by_version(weight: torch.Tensor) -> Any:
    return weight.data_ptr(), weight._version


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (Kept(lambda w: w.data_ptr()), "call again after the parameters changed in place: output"),
        (Kept(lambda w: w._version), "call again after the parameters were replaced through .data: output"),
        (Kept(lambda w: w.data_ptr(), only_without_grad=True), "parameters changed in place, without grad: output"),
    ],
)
def test_a_weight_that_is_kept_too_long(layer: nn.Module, words: str) -> None:
    assert words in found("sequences", layer, (x(),), linear()).problem


def test_state_of_each_side_is_its_own_again() -> None:
    mine, theirs = Scaled(), Scaled()
    theirs.largest.fill_(3.0)
    with State(Call(mine, (x(),), theirs)).aligned():
        assert not theirs.largest.any()
        theirs(x())
    assert (theirs.largest.tolist(), theirs.calls) == ([3.0] * 16, 0)


class Growing(nn.Module):
    """Counts calls in a buffer that has an element for each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.resize_(len(self.calls) + 1).fill_(1.0)
        return 2 * x


def test_a_buffer_that_grows_in_place_is_put_back() -> None:
    module = Growing()
    assert not State(Call(module, (x(),), Growing())).names  # Sizes are not compared.
    assert module.calls.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("only", [True, False])
def test_a_weight_that_is_kept_as_long_as_it_is_the_same(only: bool) -> None:
    for kind in ("sequences", "modes", "dtypes"):
        assert found(kind, Kept(by_version, only_without_grad=only), (x(),), linear()).problem == ""


def test_a_function_that_keeps_an_input_by_its_address() -> None:
    known: dict[int, torch.Tensor] = {}

    def kept(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ known.setdefault(w.data_ptr(), w.detach().T.contiguous())

    def fresh(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w.detach().T

    args = x(8, 16), x(4, 16, grad=False)
    assert "call again after the inputs changed in place: output" in found("sequences", kept, args, fresh).problem
    assert found("sequences", fresh, args, fresh).problem == ""


def test_a_second_step() -> None:
    known: dict[int, torch.Tensor] = {}

    def step(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor) -> None:
        m.lerp_(g, 0.1)
        p.sub_(m)

    def forgetful(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor) -> None:
        m.copy_(known.setdefault(m.data_ptr(), m.clone()).lerp(g, 0.1))
        p.sub_(m)

    args = tuple(x(16, grad=False) + number for number in range(3))
    words = "second step on what the first has written: argument 0 (written)"
    assert words in found("sequences", forgetful, args, step, mutates=(0, 2)).problem
    assert found("sequences", step, args, step, mutates=(0, 2)).problem == ""


# -- modes -------------------------------------------------------------------------------------------------------------


class Biased(nn.Module):
    """A linear layer with a short way that forgets something in one mode."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(normal(*shape, seed=3, grad=False)) for shape in ((16, 16), (16,)))
        self.fault = fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x @ self.weight.T
        short = {
            "no_grad": not torch.is_grad_enabled(),
            "eval": not self.training,
            "inference": torch.is_inference_mode_enabled(),
            "frozen": not self.bias.requires_grad,
            "cast": torch.is_autocast_enabled("cpu"),
        }
        if self.fault == "dtype" and short["cast"]:
            return out.float() + self.bias
        return out if short.get(self.fault) else out + self.bias.to(out.dtype)


class Reused(torch.autograd.Function):
    """Scales what it has saved, in its own memory."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.kept = 2 * x
        return x * x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return ctx.kept.mul_(gradients[0])  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("no_grad", "in eval() without grad: output"),
        ("eval", "in eval() without grad: output"),
        ("inference", "in inference_mode: output"),
        ("frozen", "frozen: all parameters: output"),
        ("cast", "under autocast to bfloat16: output: RMSE"),
        ("dtype", "under autocast to bfloat16: output: dtype float32 for bfloat16"),
    ],
)
def test_a_mode_that_a_module_is_not_made_for(fault: str, words: str) -> None:
    assert words in found("modes", Biased(fault), (x(),), Biased()).problem


def test_modes_of_a_right_module() -> None:
    result = found("modes", Biased(), (x(),), Biased())
    assert (result.problem, result.waiting) == ("", {})
    assert result.ran["modes"] >= 9


def test_a_graph_that_is_used_again() -> None:
    words = "backward again on the same graph: gradient of argument 0"
    assert words in found("modes", Reused.apply, (x(),), torch.square).problem


class Attended(torch.autograd.Function):
    """(p, lse) of scores; `early`: no gradient at all where only that of `lse` comes in."""

    @staticmethod
    def forward(ctx: Any, s: torch.Tensor, early: bool) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.set_materialize_grads(False)
        p, ctx.early = s.softmax(-1), early
        ctx.save_for_backward(p)
        return p, s.logsumexp(-1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, None]:
        (p,), (g, of_lse) = ctx.saved_tensors, gradients
        made = torch.zeros_like(p)
        if g is not None:
            made = made + p * (g - (p * g).sum(-1, keepdim=True))
        if of_lse is not None and not (ctx.early and g is None):
            made = made + p * of_lse[:, None]
        return made, None


def attended(s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return s.softmax(-1), s.logsumexp(-1)


@pytest.mark.parametrize("early", [True, False])
def test_a_loss_of_one_output(early: bool) -> None:
    problem = found("modes", lambda s: Attended.apply(s, early), (x(),), attended).problem
    assert problem == "" or ("incoming gradients (of output 1 alone): gradient of argument 0" in problem) == early
    assert bool(problem) == early


def weighted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * w / w.square().sum()


class WithoutItsOwn(torch.autograd.Function):
    """Gives no gradient of its second argument."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(w)
        return weighted(x, w)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (w,) = ctx.saved_tensors
        return weighted(gradients[0], w), None


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda x, w: x * w / w.detach().square().sum(), "argument 1 (trained): gradient of argument 1"),
        (lambda x, w: x * (w / (w * w).sum()), ""),
        (WithoutItsOwn.apply, ""),
    ],
)
def test_a_gradient_by_what_a_test_does_not_differentiate_by(fn: Callable[..., Any], words: str) -> None:
    hard = Hard(without=[each for each in HARD_KINDS if each not in ("modes", "values")], reason="one kind at a time")
    problem = run_hard(Call(fn, (x(), x(16, grad=False)), weighted, hard=hard), SECONDS).problem
    assert words in problem
    assert bool(problem) == bool(words)
    without = Call(weighted, (x(), x(16, grad=False)), lambda x, w: weighted(x, w.detach()), hard=hard)
    assert run_hard(without, SECONDS).problem == ""  # A reference may read it as a number.


def test_a_compiled_candidate_is_called_otherwise_without_being_compiled_anew() -> None:
    """Modes and dtypes would use up the variants that torch compiles, and fakes would end compilation."""
    torch.compiler.reset()
    module, reference = (torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.SiLU()) for _ in range(2))
    reference.load_state_dict(module.state_dict())
    compiled = torch.compile(module, fullgraph=True, dynamic=False, backend="eager")
    given = torch.randn(6, 12, requires_grad=True)
    compiled(given)
    kinds = ("state", "sequences", "modes", "dtypes", "fakes", "values")
    left_out = Hard(without=[each for each in HARD_KINDS if each not in kinds], reason="sizes are variants")
    result = run_hard(Call(compiled, (given,), reference, hard=left_out), SECONDS)
    assert (result.problem, result.waiting) == ("", {})
    assert min(result.ran[kind] for kind in ("sequences", "modes", "dtypes", "values")) >= 3
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(given)
    compiled(torch.randn(7, 12, requires_grad=True))  # compiled anew: torch has not given up on it


def summed_windows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x.unfold(-1, w.shape[-1], 1) * w[:, 0, None]).sum(-1)


class Narrow(nn.Module):
    """Scales, and may narrow what elementwise operators keep in float32."""

    def __init__(self, narrows: bool) -> None:
        super().__init__()
        self.scale, self.narrows = nn.Parameter(torch.rand(16)), narrows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x * self.scale
        return out.to(torch.bfloat16) if self.narrows and torch.is_autocast_enabled("cpu") else out


def test_a_reference_whose_dtype_is_due_to_promotion_accuses_nobody() -> None:
    """`nn.Linear` returns bfloat16 under autocast, and `x @ w.T + bias` float32, since the bias is; a convolution
    returns bfloat16, and products and their sum do not. A result that both compute in float32 has to be float32."""
    module = nn.Linear(16, 8)
    assert not found("modes", lambda x, w: F.conv1d(x, w, groups=3), (x(2, 3, 8), x(3, 1, 2)), summed_windows).doubts
    assert not found("modes", module, (x(),), lambda x: x @ module.weight.T + module.bias).doubts
    assert not found("dtypes", lambda x: x.expand(4, 16), (x(16),), lambda x: x + torch.zeros(4, 16)).doubts
    for narrows in (False, True):
        whole = Narrow(narrows)
        doubts = found("modes", whole, (x(),), lambda x: x * whole.scale).doubts  # noqa: B023
        assert [("dtype bfloat16 for float32" in each.problem) for each in doubts] == [True] * narrows


@pytest.mark.parametrize("kind", HARD_KINDS)
def test_inputs_without_dimensions_have_hard_inputs_too(kind: str) -> None:
    assert not found(kind, lambda x, y: x * y, (x()[0, 0].detach(), x()[0, 1].detach()), lambda x, y: y * x).doubts


def test_a_function_need_not_know_of_autocast() -> None:
    def exact(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x.unsqueeze(-1) * w).sum(1)  # elementwise operators keep float32

    assert found("modes", exact, (x(8, 16), x(16, 4)), torch.matmul).problem == ""


# -- dtypes ------------------------------------------------------------------------------------------------------------


def test_a_call_in_bfloat16_has_more_places_than_bfloat16_has_integers() -> None:
    def turned(x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        angles = torch.arange(len(x), dtype=dtype).float().view(-1, *[1] * (x.ndim - 1))
        return (x.float() * angles.cos()).to(x.dtype)

    hard = Hard(without=[each for each in HARD_KINDS if each not in ("dtypes", "sizes", "values")], reason="-")
    right, wrong = (partial(turned, dtype=dtype) for dtype in (torch.int32, torch.bfloat16))
    calls = [Call(fn, (x(24, 4, 32, dtype=torch.bfloat16),), turned, hard=hard) for fn in (right, wrong)]
    problems = [run_hard(call, SECONDS).problem for call in calls]
    assert problems[0] == ""
    assert "dim 0 grown to 1024" in problems[1]


def centred(x: torch.Tensor) -> torch.Tensor:
    return (x.float() - x.float().mean(-1, keepdim=True)).to(x.dtype)


def centred_in_place(x: torch.Tensor) -> torch.Tensor:
    """`float` is no copy of float32."""
    wide = x.float()
    return wide.sub_(wide.mean(-1, keepdim=True)).to(x.dtype)


def summed_narrow(x: torch.Tensor) -> torch.Tensor:
    """Adds one after the other in the dtype of its input."""
    total = torch.zeros_like(x[:, 0])
    for column in x.unbind(-1):
        total = total + column
    return total


class Fixed(NamedTuple):
    fn: Callable[[torch.Tensor], torch.Tensor]
    reference: Callable[[torch.Tensor], torch.Tensor]
    dtype: torch.dtype
    words: str


@pytest.mark.parametrize(
    "case",
    [
        Fixed(centred_in_place, centred, torch.bfloat16,
              "argument 0 (as float32): argument 0 was modified, first by aten.sub_.Tensor at"),
        Fixed(summed_narrow, lambda x: x.abs().sum(-1), torch.float32, "argument 0 (as bfloat16): output: RMSE"),
        Fixed(lambda x: 2 * x.half(), lambda x: 2 * x, torch.float16, ""),  # made for one dtype, and says so
        Fixed(lambda x: (2 * x).to(x.dtype if x.itemsize == 4 else torch.float64), lambda x: 2 * x, torch.float32,
              "argument 0 (as bfloat16): output: dtype float64 for bfloat16"),
        Fixed(lambda x: (x.bfloat16() * 1.1).to(x.dtype), lambda x: x * 1.1, torch.bfloat16, ""),  # as before
    ],
)  # fmt: skip
def test_another_dtype(case: Fixed) -> None:
    inputs = x(8, 1024, dtype=case.dtype, grad=False).abs()
    problem = found("dtypes", case.fn, (inputs,), case.reference).problem
    assert case.words in problem
    assert bool(problem) is bool(case.words)


def added_up(columns: bool, terms: int, wide: bool) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A product over rows, or columns, in parts of `terms` (0: in four parts), in float32 or in the inputs' dtype."""

    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        first, second = (x, y.T) if columns else (x.T, y)
        total = x.new_zeros(len(first), second.shape[1], dtype=torch.float32 if wide else x.dtype)
        size = terms or -(-first.shape[1] // 4)
        for a, b in zip(first.split(size, 1), second.split(size), strict=True):
            total += a @ b
        return total.to(x.dtype)

    return product


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize(
    ("terms", "wide", "words"),
    [(16, False, ", dim {} grown to 1024, "), (16, True, ""), (0, False, "")],
    ids=["narrow", "wide", "few parts"],
)
def test_an_accumulator_of_bfloat16_is_found_by_a_long_sum(columns: bool, terms: int, wide: bool, words: str) -> None:
    """The given sums are short, and in float32."""
    inputs = (
        (x(24, 40, grad=False), x(20, 40, grad=False)) if columns else (x(40, 24, grad=False), x(40, 20, grad=False))
    )
    hard = Hard(without=[each for each in HARD_KINDS if each not in ("dtypes", "sizes", "values")], reason="-")
    reference = (lambda x, y: x @ y.T) if columns else (lambda x, y: x.T @ y)
    result = run_hard(Call(added_up(columns, terms, wide), inputs, reference, hard=hard), SECONDS)
    assert bool(result.problem) is bool(words)
    assert words.format(int(columns)) in result.problem
    assert ("; right in float32, wrong in bfloat16: the accumulator?" in result.problem) is bool(words)
    assert result.waiting == {} or words
    for kept in ("sizes", "values") if words else ():  # which that input has others of
        call = replace(
            Call(added_up(columns, terms, wide), inputs, reference),
            hard=Hard(without=[*hard.without, kept], reason="-"),
        )
        assert run_hard(call, SECONDS).problem == ""


@pytest.mark.parametrize("shape", [(64, 256), (16, 24), (1, 8)], ids=str)
def test_a_rounded_logarithm_is_no_narrow_accumulator(shape: tuple[int, int]) -> None:
    """In bfloat16 the logarithm of a sum of 16 terms beside 2^7 is rounded, and its exponential is off by a fifth."""
    hard = Hard(without=[each for each in HARD_KINDS if each not in ("dtypes", "sizes", "values")], reason="-")
    fn, inputs = lambda a: (a - a.logsumexp(-1, keepdim=True)).exp(), (x(*shape, grad=False),)
    result = run_hard(Call(fn, inputs, lambda a: a.softmax(-1), hard=hard), SECONDS)
    assert result.problem == ""


def test_a_kernel_may_refuse_a_dtype() -> None:
    def strict(x: torch.Tensor) -> torch.Tensor:
        assert x.dtype is torch.float32
        return x + 1

    result = found("dtypes", strict, (x(),), lambda x: x + 1)
    assert result.problem == ""
    assert result.left_out["the candidate raises"] == 3


# -- fake implementations ----------------------------------------------------------------------------------------------


def operator(name: str, fake: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """An operator that transposes, and copies what it is given."""

    @torch.library.custom_op(f"perfguard_fakes::{name}", mutates_args=())
    def turned(x: torch.Tensor) -> torch.Tensor:
        return x.T.clone(memory_format=torch.contiguous_format)

    turned.register_fake(fake)
    turned.register_autograd(lambda ctx, gradient: turned(gradient))
    return turned


def kept_strides(x: torch.Tensor) -> tuple[int, int]:
    """Those of a copy, but for what is not contiguous."""
    return (len(x), 1) if x.is_contiguous() else (1, x.shape[1])


@pytest.mark.parametrize(
    ("name", "fake", "words"),
    [
        ("kept", lambda x: torch.empty_like(x.T), "output 0: strides (1,16), the operator's are (8,1)"),
        ("shape", lambda x: x.new_empty(x.shape), "output 0: shape [8, 16], the operator's is [16, 8]"),
        ("dtype", lambda x: x.new_empty(x.T.shape, dtype=torch.float64), "dtype float64, the operator's is float32"),
        ("slip", lambda x: x.new_empty(x.sizes), "raises AttributeError"),
        ("layout", lambda x: x.new_empty_strided(x.T.shape, kept_strides(x)), "transposed in memory"),
        ("other", lambda x: x.new_empty(x.T.shape, dtype=torch.float32), "is bfloat16, its inputs in bfloat16"),
    ],
)
def test_a_fake_that_says_something_else(name: str, fake: Callable[..., Any], words: str) -> None:
    turned = operator(name, fake)
    problem = found("fakes", lambda x: turned(x) * 2, (x(),), lambda x: x.T * 2).problem
    assert f"fake implementation of perfguard_fakes::{name}" in problem
    assert words in problem


def test_a_fake_that_says_something_else_of_another_option() -> None:
    @torch.library.custom_op("perfguard_fakes::told", mutates_args=())
    def told(x: torch.Tensor, twice: bool) -> torch.Tensor:
        return x.expand(1 + twice, *x.shape).clone(memory_format=torch.contiguous_format)

    told.register_fake(lambda x, twice: x.new_empty((1, *x.shape)))

    def both(x: torch.Tensor, twice: bool = False) -> torch.Tensor:
        return told(x, twice)

    def reference(x: torch.Tensor, twice: bool = False) -> torch.Tensor:
        return x.expand(1 + twice, *x.shape).clone()

    problem = found("fakes, scalars", both, (x(grad=False),), reference).problem
    assert "options (twice=True) and fake implementations of custom operators: fake implementation" in problem
    assert "output 0: shape [1, 8, 16], the operator's is [2, 8, 16]" in problem


def test_right_fakes_are_quiet_and_none_is_no_fault() -> None:
    turned = operator("right", lambda x: x.new_empty(x.T.shape))
    result = found("fakes", turned, (x(),), lambda x: x.T.contiguous())
    assert (result.problem, result.ran["fakes"]) == ("", 1)
    of_float32 = operator("of_float32", lambda x: x.new_empty(x.T.shape, dtype=torch.float32))
    weight = torch.ones(8, 1)  # of the reference, which takes no other dtype
    assert found("fakes", lambda x: of_float32(x) * 2, (x(),), lambda x: x.T * (2 + 0 * (x.T @ weight))).problem == ""

    @torch.library.custom_op("perfguard_fakes::undescribed", mutates_args=())
    def undescribed(x: torch.Tensor) -> torch.Tensor:
        return x.T.contiguous()

    assert found("fakes", undescribed, (x(grad=False),), lambda x: x.T.contiguous()).problem == ""


@pytest.mark.parametrize("declared", [True, False])
def test_a_schema_says_what_its_operator_writes(declared: bool) -> None:
    @torch.library.custom_op(f"perfguard_fakes::put_{declared}", mutates_args=("cache",) if declared else ())
    def put(rows: torch.Tensor, cache: torch.Tensor) -> None:
        cache[: len(rows)] = rows

    put.register_fake(lambda rows, cache: None)
    args = (x(3, 4, grad=False), torch.zeros(5, 4))
    problem = found("fakes", put, args, lambda rows, cache: cache[:3].copy_(rows) and None, mutates=(1,)).problem
    words = "schema of perfguard_fakes::put_False: cache is written, but not among mutates_args"
    assert problem == "" if declared else words in problem
    assert not args[1].any()


# -- beside a base -----------------------------------------------------------------------------------------------------


def test_a_base_is_asked_the_same() -> None:
    doubt = found("modes", Biased("eval"), (x(),), Biased()).doubts[0]
    args = (x(),)
    assert "output" in judge_again(Call(Biased("eval"), args, Biased()), doubt).problem
    assert judge_again(Call(Biased(), args, Biased()), doubt).problem == ""


def test_every_way_is_named_once() -> None:
    ways = [repr(part) for part in called_parts(Call(Biased(), (x(),), Biased()))]
    assert len(ways) == len({*ways}) > 15


# -- results that are kept, and modules as they are before training ----------------------------------------------------


class Buffered:
    """Doubles into a buffer that it keeps; `own`: it returns a copy."""

    def __init__(self, own: bool) -> None:
        self._kept: dict[Any, torch.Tensor] = {}
        self._own = own

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = self._kept.setdefault(x.shape, torch.empty(x.shape))
        torch.mul(x, 2, out=out)
        return out.clone() if self._own else out


@pytest.mark.parametrize("own", [True, False])
def test_a_result_is_not_overwritten_by_the_next_call(own: bool) -> None:
    problem = found("sequences", Buffered(own), (x(grad=False),), lambda x: x + x).problem
    assert problem == "" if own else "a result that is kept while a call on other values is made: output" in problem


class Summing(nn.Module):
    """Adds to its buffer and returns it; `own`: a copy of it."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.own = own
        self.register_buffer("total", torch.zeros(6, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x
        return self.total.clone() if self.own else self.total


def test_state_that_a_call_returns_may_be_changed_by_the_next() -> None:
    result = found("sequences", Summing(own=False), (torch.rand(6, 16),), Summing(own=True))
    assert (result.problem, result.left_out.total()) == ("", 1)


class Gated(nn.Module):
    """A bias of zeros chooses columns; `fault`: it also adds to them. Angles are made of rates that it keeps."""

    bias: torch.Tensor
    rates: torch.Tensor

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.gain = nn.Parameter(normal(16, seed=3, grad=False))
        self.register_buffer("bias", torch.zeros(16))
        self.register_buffer("rates", torch.logspace(0, -2, 16) * 300)
        self.fault = fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rates = self.rates.float() if self.fault == "cast" else torch.logspace(0, -2, 16) * 300
        gain = self.gain * rates.cos().to(x.dtype)
        chosen = x.where(x + self.bias > 0, 0) * gain
        return chosen + self.bias.to(x.dtype) * gain if self.fault == "adds" else chosen


def test_parameters_and_buffers_of_one_value_get_different_ones() -> None:
    problem = found("equal values", Gated("adds"), (x(),), Gated()).problem
    assert "different values in parameters and buffers of one value: output" in problem
    gated = Gated()
    assert found("equal values", gated, (x(),), Gated()).problem == ""
    assert not gated.bias.any()


class Divided(nn.Module):
    """Divides by a scale of ones; `inverse`: multiplies by the inverse, which it keeps beside it."""

    def __init__(self, inverse: bool) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(16))
        for name in ("scale", "scale_inverse"):
            self.register_buffer(name, torch.ones(16))
        self.inverse = inverse

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gain * (x * self.scale_inverse if self.inverse else x / self.scale)


def test_buffers_that_have_to_agree_stay_as_they_are() -> None:
    result = found("equal values", Divided(inverse=True), (x(),), Divided(inverse=False))
    assert (result.problem, result.ran["equal values"]) == ("", 1)


def test_buffers_are_cast_with_their_module() -> None:
    assert "parameters as bfloat16: output" in found("dtypes", Gated("cast"), (x(),), Gated()).problem
    assert found("dtypes", Gated(), (x(),), Gated()).problem == ""
    assert found("dtypes", Gated("cast"), (x(),), partial(nn.Module.__call__, Gated())).problem == ""
