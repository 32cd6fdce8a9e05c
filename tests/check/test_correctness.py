"""`check` on whole calls: every class of wrong answers is caught in the right words, the right ones pass."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import count
from typing import Any

import numpy
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from perfguard.check import correctness
from perfguard.check.checked import Checked
from perfguard.check.correctness import check
from perfguard.check.memory import poisoned
from perfguard.check.numerics.trial import Inputs
from perfguard.model.call import Call, Tolerance
from perfguard.model.errors import UsageError
from perfguard.tensors.layouts import equal_rows, transposed

GROUPS = torch.tensor([10, 10, 40, 60], dtype=torch.int32)  # the second group is empty
FN, FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16, grad: bool = False) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return values.requires_grad_(grad)


def checked(fn: Callable[..., Any], *args: Any, reference: Callable[..., Any], **options: Any) -> Checked:
    return check(Call(fn, args, reference, **options))


def only_problem(result: Checked) -> str:
    assert len(result.wrong) == 1, result.wrong
    return result.wrong[0]


# -- references --------------------------------------------------------------------------------------------------------


def scale_rows(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def sum_groups(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """(M, K), (G,) -> (G, K): the sum of each group's rows."""
    starts = [0, *ends.tolist()[:-1]]
    return torch.stack([x[a:b].sum(0) for a, b in zip(starts, ends.tolist(), strict=True)])


def quantize(x: torch.Tensor, dtype: torch.dtype = FN) -> tuple[torch.Tensor, torch.Tensor]:
    """One scale a row, clamped."""
    largest = torch.finfo(dtype).max
    scale = (largest / x.abs().amax(1, keepdim=True).double().clamp(min=1e-12)).float()
    return (x.float() * scale).clamp(-largest, largest).to(dtype), scale


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def nested(x: torch.Tensor) -> dict[str, Any]:
    return {"loss": x.sum(), "parts": [x, (x * 2,)], "count": 3}


# -- correct candidates pass -------------------------------------------------------------------------------------------


def split_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Another order of summation."""
    k = a.shape[1] // 2
    return (a[:, :k].float() @ b[:k].float() + a[:, k:].float() @ b[k:].float()).to(a.dtype)


def test_another_summation_order_passes_with_its_gradients() -> None:
    a, b = normal(33, 96, grad=True), normal(96, 40, seed=1, grad=True)
    result = checked(split_matmul, a, b, reference=matmul)
    assert (result.wrong, result.notes) == ([], [])
    assert result.backward is not None
    names = [accuracy.output for accuracy in result.forward + result.backward]
    assert names == ["output", "gradient of argument 0", "gradient of argument 1"]
    for accuracy in result.forward + result.backward:
        assert accuracy.sqnr_db == pytest.approx(55.6, abs=1)
        assert accuracy.error_ratio == pytest.approx(1, abs=0.1)
    assert a.grad is None


@pytest.mark.parametrize("dtype", [FN, FNUZ, torch.float8_e5m2, torch.float8_e5m2fnuz], ids=str)
def test_a_quantiser_passes_against_itself_with_the_sqnr_of_its_format(dtype: torch.dtype) -> None:
    result = checked(quantize, normal(64, 48), dtype, reference=quantize)
    assert (result.wrong, result.backward) == ([], None)
    codes, scales = result.forward
    assert codes.sqnr_db == pytest.approx(32 if "e4m3" in str(dtype) else 26, abs=1)
    assert scales.problem == ""


def into_empty(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x).copy_(scale_rows(x))


def rounding_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A reference that rounds inside is widened there, too."""
    return (a.float() @ b.float()).to(torch.bfloat16)


def same(fn: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    return fn, args, fn


@pytest.mark.parametrize(
    ("fn", "args", "reference"),
    [
        same(lambda x: (x, x.t(), x[1]), normal(8, 32)),  # aliases
        same(scale_rows, normal(0, 32, grad=True)),
        (into_empty, (normal(33, 48),), scale_rows),
        (split_matmul, (normal(40, 64), normal(64, 40, seed=1)), rounding_matmul),
        same(scale_rows, normal(1, 40).expand(16, 40)),
        same(lambda x: torch.nn.functional.dropout(x, 0.5), normal(8, 48, dtype=torch.float64)),  # equal random numbers
        # the order of rows does not change the result, or not by more than rounding
        same(lambda x: x.double().sum(0).to(x.dtype), normal(64, 16)),
        same(lambda x: x.abs().amax(), normal(8, 16)),
        same(scale_rows, torch.ones(4, 4)),
        same(scale_rows, torch.ones(1, 1)),
        same(scale_rows, normal(1, 8).expand(4, 8)),
        same(scale_rows, torch.arange(12).view(3, 4)),
        same(lambda x: x.cumsum(1), torch.stack([normal(4, 4)] * 2)),
    ],
)
def test_what_is_right_passes(fn: Callable[..., Any], args: tuple[Any, ...], reference: Callable[..., Any]) -> None:
    before = torch.get_rng_state()
    assert checked(fn, *args, reference=reference).wrong == []
    assert torch.equal(torch.get_rng_state(), before)


def test_nested_outputs_are_named_by_their_path() -> None:
    result = checked(nested, normal(8, 32), reference=nested)
    assert [a.output for a in result.forward] == ["output loss", "output parts[0]", "output parts[1][0]"]
    assert result.wrong == []


def test_declared_writes_are_compared_as_outputs() -> None:
    x, out = normal(8, 32), torch.zeros(8, 32, dtype=torch.bfloat16)

    def candidate(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return out.copy_(scale_rows(x))

    assert checked(candidate, x, out, reference=candidate, mutates=(1,)).wrong == []
    assert not bool(out.any()), "the user's tensor is as it was"
    forgets = checked(lambda x, _: scale_rows(x), x, out, reference=candidate, mutates=(1,))
    assert "argument 1 (written): RMSE" in only_problem(forgets)
    before = x.clone()
    assert checked(lambda x: x.mul_(2), x, reference=lambda x: x.mul_(2), mutates=(0,)).wrong == []
    assert torch.equal(x, before)


def test_a_narrow_accumulator_that_is_still_allowed_is_noted() -> None:
    def narrow(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        half = a.shape[1] // 2
        return a[:, :half] @ b[:half] + a[:, half:] @ b[half:]  # partial sums in bf16

    result = checked(narrow, normal(64, 128), normal(128, 64, seed=1), reference=matmul)
    assert result.wrong == []
    (note,) = result.notes
    assert note.startswith("output: 1.")
    assert "times eager's error (RMSE" in note


# -- wrong values ------------------------------------------------------------------------------------------------------


def scale_lost_for_a_group(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    out = sum_groups(x, ends)
    out[3] *= 1.02
    return out


def of_the_other_format(x: torch.Tensor) -> torch.Tensor:
    codes, scale = quantize(x)
    return codes.view(torch.uint8).view(FNUZ).float() / scale


def dequantized(x: torch.Tensor) -> torch.Tensor:
    codes, scale = quantize(x)
    return codes.float() / scale


def bf16_accumulator(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
    for k in range(0, a.shape[1], 16):
        out += a[:, k : k + 16] @ b[k : k + 16]
    return out


def outlier(index: tuple[int, int], value: float) -> torch.Tensor:
    x = normal(8, 48)
    x[index] = value
    return x


def group_scaled(x: torch.Tensor) -> torch.Tensor:
    y = scale_rows(x)
    y[8:30] *= 1.5
    return y


SQUARE = normal(32, 32, dtype=torch.float32)
ROWS, COLUMNS = normal(64, 48), normal(16, 2048)


@pytest.mark.parametrize(
    ("fn", "args", "reference", "options", "words"),
    [
        (lambda x: scale_rows(x).roll(1, 0), (ROWS,), scale_rows, {}, ["output: RMSE", "SQNR", "; looks shifted down"]),
        (lambda x: 1.02 * (x * 2), (SQUARE,), lambda x: x * 2, {}, ["looks scaled by 1.02"]),
        (scale_lost_for_a_group, (normal(8192, 64), torch.arange(8, 8193, 8, dtype=torch.int32)), sum_groups, {},
         ["row 3 of 1024", "the whole tensor passes", "looks scaled by 1.02"]),
        (group_scaled, (SQUARE,), scale_rows, {"groups": (8, 30, 32)},
         [" looks scaled by 1.5; wrong are rows 8 to 29 of 32, and the others right; in group 1 of 3 (22 rows)"]),
        (of_the_other_format, (ROWS,), dequantized, {}, ["looks scaled by 0.5", "SQNR 6.0 dB"]),
        (lambda x: quantize(x)[0].view(torch.uint8).view(FNUZ), (ROWS,), lambda x: quantize(x)[0], {},
         ["output: dtype is float8_e4m3fnuz, the reference's is float8_e4m3fn"]),
        # a dropped clamp gives NaN in fnuz
        (lambda x: x.float().to(FNUZ), (outlier((2, 5), 1000),), lambda x: x.float().clamp(-240, 240).to(FNUZ), {},
         ["1 of 384 codes differ", "at [2, 5]: got 0x80 (nan), want 0x7F (240)"]),
        (lambda x: x.float().clamp(-256, 256).to(FN), (outlier((0, 1), 300),),
         lambda x: x.float().clamp(-448, 448).to(FN), {}, ["at [0, 1]: got 0x78 (256), want 0x79 (288)"]),
        (bf16_accumulator, (COLUMNS, normal(2048, 40, seed=1)), matmul, {}, ["output: RMSE"]),
    ],
)  # fmt: skip
def test_wrong_values(
    fn: Callable[..., Any], args: tuple[Any, ...], reference: Any, options: dict[str, Any], words: list[str]
) -> None:
    problem = only_problem(checked(fn, *args, reference=reference, **options))
    for each in words:
        assert each in problem


def test_a_tie_is_counted() -> None:
    def nearest(x: torch.Tensor) -> torch.Tensor:
        return x.float().clamp(-448, 448).to(FN)

    def half_away(x: torch.Tensor) -> torch.Tensor:
        codes = nearest(x).view(torch.uint8)
        return torch.where(x == 1.0625, codes + 1, codes).view(FN)  # between 1 and 1.125, to the odd code

    x = outlier((0, 0), 1.0625)
    tie = checked(half_away, x, reference=nearest)
    assert tie.wrong == []
    assert tie.forward[0].ties == int((x == 1.0625).sum()) >= 1


def test_a_tolerance_reaches_the_codes() -> None:
    def stepped(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        codes, scale = quantize(x)
        pattern = codes.view(torch.uint8).clone()
        pattern[0, :4] = torch.where(pattern[0, :4] & 0x7F > 1, pattern[0, :4] - 1, pattern[0, :4])
        return pattern.view(FN), scale

    assert "0 of them by more than one step" in only_problem(checked(stepped, ROWS, reference=quantize))
    allowed = Tolerance(fp8_step_fraction=0.04, reason="the interpreter's cast")
    assert checked(stepped, ROWS, reference=quantize, tolerance=allowed).wrong == []


# -- unwritten memory --------------------------------------------------------------------------------------------------


def skips_empty_groups(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    out = torch.empty(len(ends), x.shape[1], dtype=x.dtype)
    start = 0
    for group, end in enumerate(ends.tolist()):
        if end > start:
            out[group] = x[start:end].sum(0)
        start = end
    return out


def floor_division(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for block in range(len(x) // 16):
        out[block * 16 : block * 16 + 16] = scale_rows(x[block * 16 : block * 16 + 16])
    return out


@pytest.mark.parametrize(
    ("fn", "args", "reference", "words"),
    [
        (skips_empty_groups, (normal(60, 48), GROUPS), sum_groups,
         ["output: depends on old memory: 48 of 192 elements change, the first at [1, 0]"]),
        (floor_division, (normal(33, 48),), scale_rows, ["[32, ", "with fresh memory filled with NaN"]),
        # each poison shows what another hides: here NaN alone is laundered
        (lambda x: floor_division(x).nan_to_num(0.0), (normal(33, 48),), scale_rows, ["[32, "]),
    ],
)  # fmt: skip
def test_what_is_not_written_depends_on_old_memory(
    fn: Callable[..., Any], args: tuple[Any, ...], reference: Any, words: list[str]
) -> None:
    problems = checked(fn, *args, reference=reference).problems
    text = next(problem for problem in problems if "depends on old memory" in problem)
    for each in words:
        assert each in text


def test_quick_checks_still_compare_and_poison_once() -> None:
    calls = []

    def candidate(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        return sum_groups(x, ends)

    def on_its_own_poison(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        with poisoned("nan") if len(calls) == 1 else nullcontext():
            return skips_empty_groups(x, ends)

    args = (normal(60, 48), GROUPS)
    assert check(Call(candidate, args, sum_groups), full=False).wrong == []
    assert len(calls) == 2
    calls.clear()
    for fn in (skips_empty_groups, on_its_own_poison):
        wrong = check(Call(fn, args, sum_groups), full=False)
        assert any("depends on old memory: 48 of 192 elements change" in problem for problem in wrong.problems)


# -- gradients ---------------------------------------------------------------------------------------------------------


def test_a_detached_path_names_the_input() -> None:
    a, b = normal(16, 32, grad=True), normal(32, 40, seed=1, grad=True)
    result = checked(lambda a, b: a.detach() @ b, a, b, reference=matmul)
    assert "no gradient for argument 0" in only_problem(result)
    nothing = checked(lambda a, b: (a @ b).detach(), a, b, reference=matmul)
    assert "output: does not require grad, the reference's does: a detached path" in nothing.problems
    assert sum("no gradient for argument" in problem for problem in nothing.wrong) == 2


class Doubles(torch.autograd.Function):
    """y = 2x, with a backward that each test chooses."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, backward: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        ctx.chosen = backward
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.chosen(grad), None


def doubled(backward: Callable[[torch.Tensor], torch.Tensor], *shape: int) -> Checked:
    x = normal(*shape, grad=True)
    return checked(lambda x: Doubles.apply(x, backward), x, reference=lambda x: x * 2)


def flat(grad: torch.Tensor) -> torch.Tensor:
    """Takes the incoming gradient for contiguous."""
    storage = grad.new_zeros(grad.numel() + 1)
    held = torch.empty(0, dtype=grad.dtype).set_(grad.untyped_storage())
    storage[: held.numel()] = held
    return storage[: grad.numel()].view(grad.shape) * 2


@pytest.mark.parametrize(
    ("backward", "words"),
    [
        (torch.zeros_like, ["gradient of argument 0: is zero everywhere, the oracle's RMS is 2."]),
        (lambda grad: torch.empty_like(grad) * 0 + grad * 2, ["gradient of argument 0: depends on old memory"]),
        (flat, ["this with incoming gradients expanded (stride 0)", "this with incoming gradients transposed"]),
        (lambda grad: (grad.view(-1) * 2).view(grad.shape), ["backward: raises with incoming gradients transposed"]),
    ],
)
def test_wrong_gradients(backward: Callable[[torch.Tensor], torch.Tensor], words: Sequence[str]) -> None:
    found = doubled(backward, 16, 40).wrong
    for each in words:
        assert any(each in problem for problem in found), found


@pytest.mark.parametrize("shape", [(16, 40), (7,), (2, 3, 40), ()])
def test_correct_backward_passes_whatever_the_layout(shape: tuple[int, ...]) -> None:
    assert doubled(lambda grad: grad * 2, *shape).wrong == []
    if shape:
        gradient = torch.randn(shape)
        swapped, spread = transposed(gradient), equal_rows(gradient)
        assert torch.equal(swapped, gradient)
        assert not swapped.is_contiguous()
        assert swapped.storage_offset() % 2 == 1
        assert (spread.shape, spread.stride()[0]) == (gradient.shape, 0)


class AddedBias(torch.autograd.Function):
    """x (T, D) + bias (D,). The gradient of the bias is summed row by row, in the dtype of x."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return x + bias

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        total = torch.zeros_like(grad[0])
        for row in grad:
            total = total + row
        return grad, total


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_plain_loop_over_equal_rows_is_a_right_sum(dtype: torch.dtype) -> None:
    """All roundings of such a sum go one way, where rows have all digits."""
    for seed in range(3):
        x, bias = normal(2000, 64, seed=seed).to(dtype), normal(64, seed=9).to(dtype)
        given = x.requires_grad_(), bias.requires_grad_()
        assert checked(AddedBias.apply, *given, reference=lambda x, bias: x + bias).wrong == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("column", "right"), [(5, True), (6, False)])
def test_an_element_at_an_edge_may_be_on_either_side(dtype: torch.dtype, column: int, right: bool) -> None:
    """relu(x + bias) @ weight: where roundings decide whether an element is cut, its gradient jumps."""

    class Cut(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, total: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(total)
            return torch.relu(total)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            kept = ctx.saved_tensors[0] > 0
            kept[3, column] = ~kept[3, column]
            return grad * kept

    x, bias, weight = normal(512, 256, dtype=dtype), normal(256, seed=1, dtype=dtype), normal(256, 64, dtype=dtype)
    x[3, 5] = -bias[5]
    assert (x + bias)[3, 6].abs() > 0.1
    result = checked(
        lambda x, bias, weight: Cut.apply(x + bias) @ weight,
        x.requires_grad_(),
        bias,
        weight,
        reference=lambda x, bias, weight: torch.relu(x + bias) @ weight,
    )
    assert (result.wrong == []) is right, result.wrong


@pytest.mark.filterwarnings("error")
def test_numpy_does_not_warn_of_old_memory() -> None:
    """As in Triton's interpreter, where the lanes beyond a row hold anything until the store leaves them out."""

    def padded(x: torch.Tensor) -> torch.Tensor:
        lanes = torch.empty(64)
        lanes[: len(x)] = x
        return torch.from_numpy(numpy.exp(lanes.numpy()))[: len(x)]

    assert checked(padded, torch.ones(40), reference=torch.exp).wrong == []


# -- inputs ------------------------------------------------------------------------------------------------------------

DECLARE = "where that is meant, declare it: clobbers="
EITHER = "where that is meant, declare it: mutates={0}, which is compared, or clobbers={0}"


def without_line(text: str) -> str:
    """The text without ` at tests/check/test_correctness.py:481`, which must be there."""
    return re.sub(r" at \S*test_correctness\.py:\d+", "", text, count=1)


def test_a_modified_input_is_named_and_undone() -> None:
    x, y = normal(8, 48), normal(8, 48, seed=1)
    kept = x.clone(), y.clone()
    text = only_problem(checked(lambda x, y: x + y.mul_(1).add_(1), x, y, reference=lambda x, y: x + y + 1))
    assert (
        without_line(text) == f"argument 1 was modified, first by aten.add_.Tensor in <lambda>; {EITHER.format('(1,)')}"
    )
    assert torch.equal(x, kept[0])
    assert torch.equal(y, kept[1])


def test_an_input_modified_in_the_backward_pass_is_named() -> None:
    def backward(grad: torch.Tensor) -> torch.Tensor:
        held[0].detach().view(-1)[3] = 7
        return grad * 2

    held = [normal(8, 48, grad=True)]
    result = checked(lambda x: Doubles.apply(x, backward), held[0], reference=lambda x: x * 2)
    (text,) = result.problems
    first = "first by aten.copy_.default in backward"
    assert without_line(text) == f"argument 0 was modified in the backward pass, {first}; {DECLARE}(0,)"


class InPlace(torch.autograd.Function):
    """Sums of squares by row. The gradient takes the memory of x (forward), what comes in is used up (backward)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = (x * x).sum(dim=1)
        memory = x.detach().data  # as a kernel writes: autograd sees nothing of it
        memory.mul_(2)
        ctx.gradient = memory
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (dy,) = gradients
        ctx.gradient *= dy[:, None]
        dy.data.zero_()
        return ctx.gradient


def squares(x: torch.Tensor) -> torch.Tensor:
    return (x * x).sum(dim=1)


def test_inputs_that_are_used_up_on_purpose_are_declared_and_still_checked() -> None:
    x = normal(8, 48, grad=True)
    kept = x.detach().clone()
    first = "first by aten.zero_.default in backward"
    gradients = f'the incoming gradient of output 0 was modified in the backward pass, {first}; {DECLARE}("gradients",)'
    accused = checked(InPlace.apply, x, reference=squares)
    written = f"argument 0 was modified, first by aten.mul_.Tensor in forward; {EITHER.format('(0,)')}"
    assert [*map(without_line, accused.problems)] == [written, gradients]
    assert [*map(without_line, checked(InPlace.apply, x, reference=squares, clobbers=(0,)).problems)] == [gradients]
    assert checked(InPlace.apply, x, reference=squares, clobbers=(0, "gradients")).wrong == []
    assert checked(lambda x: InPlace.apply(x) * 1.1, x, reference=squares, clobbers=(0, "gradients")).wrong
    assert torch.equal(x, kept)


def test_a_write_beside_a_sliced_input_is_found() -> None:
    base = normal(16, 48)
    x = base[4:12]

    def candidate(x: torch.Tensor) -> torch.Tensor:
        base[12, 0] = 5
        return scale_rows(x)

    beside = "memory beside argument 0, in the same storage, was written"
    text = without_line(only_problem(checked(candidate, x, reference=scale_rows)))
    assert text == f"{beside}, first by aten.copy_.default in candidate"
    declared = checked(lambda x: (x.add_(1), base[0].zero_())[0], x, reference=lambda x: x.add_(1), mutates=(0,))
    assert [*map(without_line, declared.problems)] == [f"{beside}, first by aten.zero_.default in <lambda>"]


def test_an_input_whose_memory_is_freed_is_named_and_there_again() -> None:
    x = normal(8, 48)
    before = x.clone()

    def frees(x: torch.Tensor) -> torch.Tensor:
        y = scale_rows(x)
        x.untyped_storage().resize_(0)
        return y

    assert only_problem(checked(frees, x, reference=scale_rows)) == "argument 0: its memory was freed by the call"
    assert torch.equal(x, before)


def test_strides_and_sharing_of_the_inputs_reach_the_candidate() -> None:
    seen = []

    def candidate(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        assert x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
        seen.append((x.stride(), x.storage_offset() % 256))  # a guard before it is 256 elements, which align to all
        return x + y

    x = normal(64, 40).t()[3:]
    assert checked(candidate, x, x[:1].expand(37, 64), reference=lambda x, y: x + y).wrong == []
    assert set(seen) == {(x.stride(), x.storage_offset())}


# -- out of bounds -----------------------------------------------------------------------------------------------------


class Buffer:
    """Memory as a kernel sees it: without ends."""

    def __init__(self, tensor: torch.Tensor) -> None:
        whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
        self.start, self.whole = tensor.storage_offset(), whole

    def at(self, offset: int) -> torch.Tensor:
        """One element, or a stand-in where the test's own memory ends."""
        inside = 0 <= self.start + offset < self.whole.numel()
        return self.whole[self.start + offset] if inside else torch.zeros((), dtype=self.whole.dtype)


@pytest.mark.parametrize(
    ("offset", "words"),
    [(384, "2 bytes past its end, from offset 768 on"), (-2, "2 bytes before its start, from offset -4 on")],
)
def test_a_write_past_an_end_of_an_output_is_found(offset: int, words: str) -> None:
    def candidate(x: torch.Tensor) -> torch.Tensor:
        out = into_empty(x)
        Buffer(out).at(offset).fill_(1)
        return out

    text = only_problem(checked(candidate, normal(8, 48), reference=scale_rows))
    assert text.startswith("out of bounds: bfloat16[8,48], empty_like at tests/check/test_correctness.py:")
    assert f" in into_empty, of 768 bytes: {words}" in text


def squared(x: torch.Tensor) -> torch.Tensor:
    return x @ x


def nudged(x: torch.Tensor, by: torch.Tensor | float) -> torch.Tensor:
    """One element off by a rounding of bfloat16, times `by`."""
    product = squared(x)
    product[0, 0] *= 1 + 2**-7 * by
    return product


@pytest.mark.parametrize(
    ("fn", "x", "reference", "words"),
    [
        *((lambda x, at=offset: scale_rows(x) + Buffer(x).at(at) * 0, normal(8, 48), scale_rows, "384 of 384 elements")
          for offset in (384, -1)),
        (lambda x: scale_rows(x) + Buffer(x).at(50) * 0, normal(8, 64)[:, :48], scale_rows, ""),  # between the rows
        (lambda x: nudged(x, Buffer(x).at(x.numel()).isnan()), normal(48, 48), squared, "1 of 2304 elements"),
    ],
)  # fmt: skip
def test_a_read_beside_an_input_is_found(
    fn: Callable[..., Any], x: torch.Tensor, reference: Callable[..., Any], words: str
) -> None:
    text = only_problem(checked(fn, x, reference=reference))
    assert text.startswith(f"output: depends on memory beside argument 0: {words}")


@pytest.mark.parametrize("first", range(3, 9))
def test_a_sum_that_differs_by_chance_depends_on_no_memory(first: int) -> None:
    """Atomic additions change the last bit in few calls, and may do so first where the inputs lie between guards."""
    calls = 0

    def candidate(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return nudged(x, 1) if calls in (first, first + 2) else squared(x)

    assert checked(candidate, normal(48, 48), reference=squared).wrong == []


# -- run to run --------------------------------------------------------------------------------------------------------


def counting(fn: Callable[[int], Callable[..., Any]]) -> Callable[..., Any]:
    """A function that differs by the number of the call."""
    calls = 0

    def candidate(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        return fn(calls)(*args)

    return candidate


def test_a_difference_from_run_to_run_above_eager_error_is_wrong() -> None:
    def at(call: int) -> Callable[..., Any]:
        def fn(x: torch.Tensor) -> torch.Tensor:
            out = scale_rows(x)
            out[call % 5, 3] += 1
            return out

        return fn

    problems = checked(counting(at), normal(8, 48), reference=scale_rows).problems
    assert any("output: differs from run to run: " in each and "of 10 further runs differ; by RMSE" in each
               for each in problems)  # fmt: skip
    assert not any("depends on old memory" in each for each in problems)


class Average(torch.nn.Module):
    """A moving average, whose share falls from call to call; `fault`: that of a call depends on chance as well."""

    kept: torch.Tensor

    def __init__(self, fault: bool = False) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(16))
        self.calls, self.fault, self._runs = 0, fault, count()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.kept.lerp_(x, 1 / (1 + self.calls) + 0.1 * (self.fault and next(self._runs)))
        return self.kept * 1


def test_results_that_follow_from_state_differ_from_call_to_call() -> None:
    x = torch.arange(16.0)
    assert check(Call(Average(), (x,), Average())).wrong == []
    problems = check(Call(Average(fault=True), (x,), Average())).wrong
    assert any("output: differs from run to run: " in each for each in problems)


def test_a_first_call_that_differs_is_told_apart() -> None:
    first = counting(lambda call: lambda x: scale_rows(x) + (call == 1))
    problems = checked(first, normal(8, 48), reference=scale_rows).problems
    assert any("output: the first call differs from later ones" in problem for problem in problems)


def test_a_difference_from_run_to_run_below_eager_error_passes_with_a_note() -> None:
    def other(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a.float() @ b.float() * (1 + 2.0**-12)).bfloat16()

    alternating = counting(lambda call: matmul if call % 2 else other)
    result = checked(alternating, normal(40, 64), normal(64, 40, seed=1), reference=matmul)
    assert (result.wrong, result.varying) == ([], ["output"])
    assert any("differs from run to run, by less than eager's own error" in note for note in result.notes)


def test_a_gpu_is_called_more_often_before_results_count_as_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Additions in any order come in the same one now and then: here in all calls but the fourth."""

    def other(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a.float() @ b.float() * (1 + 2.0**-12)).bfloat16()

    def seldom() -> Checked:
        call = Call(counting(lambda call: other if call >= 4 and call % 2 == 0 else matmul), (a, b), matmul)
        return check(call, full=False)

    a, b = normal(40, 64), normal(64, 40, seed=1)
    assert seldom().varying == []
    monkeypatch.setattr(correctness, "LATER", {})
    assert seldom().varying == ["output"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: torch.eye(4).to_sparse(), "argument 0: is sparse_coo;"),
        (lambda: torch.empty(4, device="meta"), "argument 0: has no data;"),
        # torch imports Triton for it, which other test modules have to import first, as an interpreter.
        (lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged), "argument 0: is a nested"),
    ],
)
def test_an_input_without_dense_data_is_named(make: Callable[[], torch.Tensor], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        checked(lambda x: x * 2, make(), reference=lambda x: x * 2)


# -- structure, oracle, errors -----------------------------------------------------------------------------------------


def test_other_outputs_than_the_reference() -> None:
    result = checked(lambda x: (x, x), normal(4, 32), reference=lambda x: x)
    assert result.problems == ["outputs: the candidate returns output 0, output 1; the reference returns output"]
    numbers = checked(lambda x: (x, 3), normal(4, 32), reference=lambda x: (x, 4))
    assert only_problem(numbers).startswith("outputs: beside tensors the candidate returns [3]")


def test_a_reference_that_refuses_float64_has_an_oracle_in_float32() -> None:
    def refuses(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is torch.float64:
            raise ValueError("x: float64 is refused")
        return x * 2

    x = normal(8, 48)
    result = checked(refuses, x, reference=refuses)
    assert (result.wrong, result.notes) == ([], ["oracle: float32, since the reference raises in float64"])


def test_modules_that_a_reference_keeps_are_widened_whatever_the_candidate_is() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(48, 16), torch.nn.SiLU(), torch.nn.Linear(16, 8)).to(torch.bfloat16)
    head = torch.nn.Linear(8, 8, dtype=torch.bfloat16)
    x = normal(8, 48)
    for reference in (
        torch.nn.Sequential(net, head),
        lambda x: head(net(x)),
        functools.partial(lambda m, x: m(x), head),
    ):
        taken = x if not isinstance(reference, functools.partial) else normal(8, 8)
        result = checked(lambda x, call=reference: call(x), taken, reference=reference)
        assert (result.wrong, result.notes) == ([], [])


def test_an_oracle_that_would_not_fit_is_float32_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfguard.check.numerics.oracle.free_bytes", lambda _: 1e3)
    result = checked(matmul, normal(40, 64), normal(64, 40, seed=1), reference=matmul)
    assert result.wrong == []
    assert result.notes == ["oracle: float32, since float64 would take over a quarter of the free memory"]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 40.00 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    ],
)
def test_an_oracle_that_runs_out_of_memory_is_float32_and_says_so(error: RuntimeError) -> None:
    """Its temporaries may be far larger than its inputs and results."""
    asked = []

    def wide_temporaries(x: torch.Tensor) -> torch.Tensor:
        asked.append(x.dtype)
        if x.dtype is torch.float64:
            raise error
        return x * 2

    x = normal(8, 48)
    result = checked(lambda x: x * 2, x, reference=wide_temporaries)
    assert (result.wrong, result.notes) == ([], ["oracle: float32, since float64 ran out of memory"])
    assert asked == [x.dtype, torch.float64, torch.float32]


def test_what_the_candidate_raises_comes_out_with_the_run_it_was_raised_in() -> None:
    def candidate(x: torch.Tensor) -> torch.Tensor:
        # More than any heap hands out a second time (64 MiB): zeros of the kernel's, unless it is poisoned.
        if bool(torch.empty(1 << 24).isnan().any()):
            raise ValueError("bad memory")
        return x

    with pytest.raises(ValueError, match="bad memory") as caught:
        checked(candidate, normal(4, 32), reference=lambda x: x)
    assert "fresh memory filled with NaN" in caught.value.__notes__[0]


# -- modules, and the inputs as text -----------------------------------------------------------------------------------


class Forgets(torch.nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(input, self.weight, self.bias.detach())


@pytest.mark.parametrize("closure", [True, False])
def test_parameters_of_a_module_are_inputs(closure: bool) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(48, 40, dtype=torch.bfloat16)

    def linear(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, layer.weight, layer.bias)

    result = checked(layer, normal(64, 48), reference=linear if closure else layer)
    assert result.wrong == []
    assert result.backward is not None
    assert [a.output for a in result.backward] == ["gradient of parameter weight", "gradient of parameter bias"]
    assert result.backward[0].sqnr_db == pytest.approx(55.6, abs=0.5)
    assert layer.weight.grad is None
    forgets = Forgets(48, 40, dtype=torch.bfloat16)
    forgets.load_state_dict(layer.state_dict())
    assert "no gradient for parameter bias" in only_problem(checked(forgets, normal(64, 48), reference=layer))


class Checkpointed(torch.nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return checkpoint(super().forward, input, use_reentrant=False)  # type: ignore[no-any-return]


def test_a_reference_may_compute_again_in_its_backward_pass() -> None:
    layer = Checkpointed(48, 40, dtype=torch.bfloat16)
    assert checked(layer, normal(8, 48, grad=True), reference=layer).wrong == []


def test_a_reference_with_other_parameters_is_refused() -> None:
    layer, other = torch.nn.Linear(48, 40), torch.nn.Linear(48, 40, bias=False)
    with pytest.raises(UsageError, match=r"^reference: has 1 parameters"):
        checked(layer, normal(4, 48, dtype=torch.float32), reference=other)


def test_inputs_are_described_the_same_in_every_process() -> None:
    x = normal(64, 40, grad=True)
    call = Call(scale_rows, (x, x.t(), [GROUPS, 3]), scale_rows, {"k": 2, "act": torch.relu, "o": object()})
    assert Inputs(call).describe() == (
        "bfloat16[64,40] grad; bfloat16[40,64] strides (1,40) grad; int32[4]; 3; k=2; "
        f"act={torch.relu.__qualname__}; o=<object object>"
    )


# -- cached results ----------------------------------------------------------------------------------------------------


def cached(key: Callable[[torch.Tensor], object]) -> Callable[[torch.Tensor], torch.Tensor]:
    known: dict[object, torch.Tensor] = {}

    def fn(x: torch.Tensor) -> torch.Tensor:
        if key(x) not in known:
            known[key(x)] = scale_rows(x)
        return known[key(x)].clone()

    return fn


def test_results_cached_by_address_are_wrong() -> None:
    by_address = cached(lambda x: x.data_ptr())
    problem = only_problem(checked(by_address, normal(8, 16), reference=scale_rows))
    assert problem.startswith("output: returns cached results")
    both = checked(lambda x: (by_address(x), 2 * x), normal(8, 16), reference=lambda x: (scale_rows(x), 2 * x))
    assert only_problem(both).startswith("output 0: returns cached results")


def test_a_cache_that_looks_at_the_version_is_right() -> None:
    versioned, x = cached(lambda x: (x.data_ptr(), x._version)), normal(8, 16)
    before = x.clone()
    assert checked(versioned, x, reference=scale_rows).wrong == []
    assert torch.equal(x, before)
    assert torch.equal(versioned(x), scale_rows(x))  # also afterwards


def test_inputs_that_must_stay_in_order_tell_nothing() -> None:
    def sorted_only(x: torch.Tensor) -> torch.Tensor:
        if bool((x.diff() < 0).any()):
            raise ValueError("x: must be sorted")
        return 2 * x

    assert checked(sorted_only, torch.arange(8.0), reference=lambda x: 2 * x).wrong == []
