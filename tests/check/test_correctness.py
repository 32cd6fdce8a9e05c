"""`check` on whole calls: every class of wrong answers is caught in the right words, the right ones pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from perfguard.check.correctness import Checked, check
from perfguard.check.memory import poisoned
from perfguard.check.numerics.trial import Inputs, expanded, transposed
from perfguard.model.call import Call, Tolerance
from perfguard.model.errors import MeasurementError, UsageError

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


# ---- references of the mutants


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


# ---- correct candidates pass


def split_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Another order of summation."""
    k = a.shape[1] // 2
    return (a[:, :k].float() @ b[:k].float() + a[:, k:].float() @ b[k:].float()).to(a.dtype)


def test_another_summation_order_passes_with_its_gradients() -> None:
    a, b = normal(33, 96, grad=True), normal(96, 40, seed=1, grad=True)
    result = checked(split_matmul, a, b, reference=matmul)
    assert result.wrong == []
    assert [accuracy.output for accuracy in result.forward] == ["output"]
    assert result.backward is not None
    names = [accuracy.output for accuracy in result.backward]
    assert names == ["gradient of argument 0", "gradient of argument 1"]
    for accuracy in result.forward + result.backward:
        assert accuracy.sqnr_db == pytest.approx(55.6, abs=1)
        assert accuracy.error_ratio == pytest.approx(1, abs=0.1)
    assert a.grad is None
    assert result.notes == []


@pytest.mark.parametrize("dtype", [FN, FNUZ, torch.float8_e5m2, torch.float8_e5m2fnuz], ids=str)
def test_a_quantiser_passes_against_itself_with_the_sqnr_of_its_format(dtype: torch.dtype) -> None:
    result = checked(quantize, normal(64, 48), dtype, reference=quantize)
    assert result.wrong == []
    assert result.backward is None
    codes, scales = result.forward
    assert codes.sqnr_db == pytest.approx(32 if "e4m3" in str(dtype) else 26, abs=1)
    assert scales.problem == ""


def test_aliasing_and_untouched_outputs_pass() -> None:
    x = normal(8, 32)
    assert checked(lambda x: (x, x.t(), x[1]), x, reference=lambda x: (x, x.t(), x[1])).wrong == []


def test_no_tensors_in_empty_inputs_pass() -> None:
    x = normal(0, 32, grad=True)
    assert checked(scale_rows, x, reference=scale_rows).wrong == []


def test_nested_outputs_are_named_by_their_path() -> None:
    def fn(x: torch.Tensor) -> dict[str, Any]:
        return {"loss": x.sum(), "parts": [x, (x * 2,)], "count": 3}

    result = checked(fn, normal(8, 32), reference=fn)
    assert [a.output for a in result.forward] == ["output loss", "output parts[0]", "output parts[1][0]"]
    assert result.wrong == []


def test_a_reference_that_rounds_inside_is_widened() -> None:
    def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a.float() @ b.float()).to(torch.bfloat16)

    result = checked(split_matmul, normal(40, 64), normal(64, 40, seed=1), reference=reference)
    assert result.wrong == []
    assert result.forward[0].sqnr_db == pytest.approx(55.6, abs=0.5)


def test_declared_writes_are_compared_as_outputs() -> None:
    x, out = normal(8, 32), torch.zeros(8, 32, dtype=torch.bfloat16)

    def candidate(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return out.copy_(scale_rows(x))

    assert checked(candidate, x, out, reference=candidate, mutates=(1,)).wrong == []
    assert not bool(out.any()), "the user's tensor is as it was"
    forgets = checked(lambda x, _: scale_rows(x), x, out, reference=candidate, mutates=(1,))
    assert "argument 1 (written): RMSE" in only_problem(forgets)


# ---- unwritten memory (K17, K18, K30)


def skips_empty_groups(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    out = torch.empty(len(ends), x.shape[1], dtype=x.dtype)
    start = 0
    for group, end in enumerate(ends.tolist()):
        if end > start:
            out[group] = x[start:end].sum(0)
        start = end
    return out


def test_an_empty_group_that_is_not_written_depends_on_old_memory() -> None:
    result = checked(skips_empty_groups, normal(60, 48), GROUPS, reference=sum_groups)
    assert any(
        "output: depends on old memory: 48 of 192 elements change, the first at [1, 0]" in problem
        for problem in result.problems
    )


@pytest.mark.parametrize("zeros_only", [True, False])
def test_a_tail_by_floor_division_depends_on_old_memory(zeros_only: bool) -> None:
    """Each poison shows what another hides: here NaN alone is laundered."""

    def candidate(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for block in range(len(x) // 16):
            out[block * 16 : block * 16 + 16] = scale_rows(x[block * 16 : block * 16 + 16])
        return out.nan_to_num(0.0) if zeros_only else out

    result = checked(candidate, normal(33, 48), reference=scale_rows)
    text = next(problem for problem in result.problems if "depends on old memory" in problem)
    assert "[32, " in text
    if not zeros_only:
        assert "with fresh memory filled with NaN" in text


def test_full_writes_pass_under_poison() -> None:
    def candidate(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        return out.copy_(scale_rows(x))

    assert checked(candidate, normal(33, 48), reference=scale_rows).wrong == []


def test_a_backward_pass_that_reads_old_memory_is_caught() -> None:
    class Accumulates(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
            return scale_rows(x)

        @staticmethod
        def backward(_: Any, grad: torch.Tensor) -> torch.Tensor:
            return torch.empty_like(grad) * 0 + grad * 2

    result = checked(Accumulates.apply, normal(8, 48, grad=True), reference=scale_rows)
    assert any(p.startswith("gradient of argument 0: depends on old memory") for p in result.problems)


# ---- wrong values (K19 - K23)


def test_rows_shifted_by_one_are_wrong() -> None:
    x = normal(64, 48)
    text = only_problem(checked(lambda x: scale_rows(x).roll(1, 0), x, reference=scale_rows))
    assert text.startswith("output: RMSE")
    assert "SQNR" in text


def test_a_scale_forgotten_for_one_group_is_found_though_the_whole_passes() -> None:
    def candidate(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        out = sum_groups(x, ends)
        out[3] *= 1.02
        return out

    x = normal(8192, 64)
    ends = torch.arange(8, 8193, 8, dtype=torch.int32)
    text = only_problem(checked(candidate, x, ends, reference=sum_groups))
    assert "row 3 of 1024" in text
    assert "the whole tensor passes" in text
    assert "looks scaled by 1.02" in text


def test_bytes_of_the_other_format_are_named() -> None:
    def candidate(x: torch.Tensor) -> torch.Tensor:
        codes, scale = quantize(x)
        return codes.view(torch.uint8).view(FNUZ).float() / scale

    def reference(x: torch.Tensor) -> torch.Tensor:
        codes, scale = quantize(x)
        return codes.float() / scale

    text = only_problem(checked(candidate, normal(64, 48), reference=reference, oracle="float32"))
    assert "looks scaled by 0.5" in text
    assert "SQNR 6.0 dB" in text
    dtype = checked(
        lambda x: quantize(x)[0].view(torch.uint8).view(FNUZ), normal(64, 48), reference=lambda x: quantize(x)[0]
    )
    assert only_problem(dtype) == "output: dtype is float8_e4m3fnuz, the reference's is float8_e4m3fn"


def test_a_dropped_floor_gives_nan() -> None:
    def candidate(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = 448.0 / x.abs().amax(1, keepdim=True).float()
        return (x.float() * scale).clamp(-448, 448).to(FN), scale

    x = normal(8, 48)
    x[3] = 0
    result = checked(candidate, x, reference=quantize)
    assert "48 of 384 codes differ" in result.forward[0].problem
    assert "(nan), want 0x00 (0)" in result.forward[0].problem
    assert result.forward[1].worst_index == [3, 0]


def test_a_dropped_clamp_gives_nan_in_fnuz() -> None:
    def with_clamp(x: torch.Tensor) -> torch.Tensor:
        return x.float().clamp(-240, 240).to(FNUZ)

    def candidate(x: torch.Tensor) -> torch.Tensor:
        return x.float().to(FNUZ)

    x = normal(8, 48)
    x[2, 5] = 1000
    text = only_problem(checked(candidate, x, reference=with_clamp))
    assert "1 of 384 codes differ" in text
    assert "at [2, 5]: got 0x80 (nan), want 0x7F (240)" in text


def test_saturating_too_early_is_caught_and_a_tie_is_counted() -> None:
    def nearest(x: torch.Tensor) -> torch.Tensor:
        return x.float().clamp(-448, 448).to(FN)

    def half_away(x: torch.Tensor) -> torch.Tensor:
        codes = nearest(x).view(torch.uint8)
        return torch.where(x == 1.0625, codes + 1, codes).view(FN)  # between 1 and 1.125, to the odd code

    x = normal(64, 48)
    x[0, :2] = torch.tensor([1.0625, 300.0])
    tie = checked(half_away, x, reference=nearest)
    assert tie.wrong == []
    assert tie.forward[0].ties == int((x == 1.0625).sum()) >= 1
    early = checked(lambda x: x.float().clamp(-256, 256).to(FN), x, reference=nearest)
    assert "at [0, 1]: got 0x78 (256), want 0x79 (288)" in only_problem(early)


def test_a_bf16_accumulator_is_wrong_where_k_is_large() -> None:
    def narrow(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
        for k in range(0, a.shape[1], 16):
            out += a[:, k : k + 16] @ b[k : k + 16]
        return out

    result = checked(narrow, normal(16, 2048), normal(2048, 40, seed=1), reference=matmul)
    assert "output: RMSE" in only_problem(result)


def test_a_narrow_accumulator_that_is_still_allowed_is_noted() -> None:
    def narrow(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        half = a.shape[1] // 2
        return a[:, :half] @ b[:half] + a[:, half:] @ b[half:]  # partial sums in bf16

    result = checked(narrow, normal(64, 128), normal(128, 64, seed=1), reference=matmul)
    assert result.wrong == []
    (note,) = result.notes
    assert note.startswith("output: 1.")
    assert "times eager's error (RMSE" in note


# ---- gradients (K28, K32)


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


def test_a_zero_gradient_is_named() -> None:
    text = only_problem(doubled(torch.zeros_like, 16, 40))
    assert text.startswith("gradient of argument 0: is zero everywhere, the oracle's RMS is 2.")


def test_an_assumed_layout_of_the_incoming_gradient_is_named() -> None:
    def flat(grad: torch.Tensor) -> torch.Tensor:
        storage = grad.new_zeros(grad.numel() + 1)
        held = torch.empty(0, dtype=grad.dtype).set_(grad.untyped_storage())
        storage[: held.numel()] = held
        return storage[: grad.numel()].view(grad.shape) * 2

    result = doubled(flat, 16, 40)
    assert any("this with incoming gradients expanded (stride 0)" in problem for problem in result.problems)
    assert any("this with incoming gradients transposed" in problem for problem in result.problems)
    assert result.backward is not None
    assert result.backward[0].problem == ""


def test_raising_on_a_strided_gradient_is_a_problem() -> None:
    result = doubled(lambda grad: (grad.view(-1) * 2).view(grad.shape), 16, 40)
    assert any("backward: raises with incoming gradients transposed" in problem for problem in result.problems)


@pytest.mark.parametrize("shape", [(16, 40), (7,), (2, 3, 40), ()])
def test_correct_backward_passes_whatever_the_layout(shape: tuple[int, ...]) -> None:
    assert doubled(lambda grad: grad * 2, *shape).wrong == []


@pytest.mark.parametrize("shape", [(7,), (4, 6), (2, 3, 5)])
def test_layouts_are_what_they_are_called(shape: tuple[int, ...]) -> None:
    gradient = torch.randn(shape)
    swapped = transposed(gradient)
    assert torch.equal(swapped, gradient)
    assert not swapped.is_contiguous()
    assert swapped.storage_offset() % 2 == 1
    spread = expanded(gradient)
    assert spread.shape == gradient.shape
    assert spread.stride()[0] == 0


# ---- inputs


def test_a_modified_input_is_named_and_undone() -> None:
    x, y = normal(8, 48), normal(8, 48, seed=1)
    kept = x.clone(), y.clone()
    text = only_problem(checked(lambda x, y: x + y.mul_(1).add_(1), x, y, reference=lambda x, y: x + y + 1))
    assert text == "argument 1 was modified; where that is meant, declare it: clobbers=(1,)"
    assert torch.equal(x, kept[0])
    assert torch.equal(y, kept[1])


def test_an_input_modified_in_the_backward_pass_is_named() -> None:
    def backward(grad: torch.Tensor) -> torch.Tensor:
        held[0].detach().view(-1)[3] = 7
        return grad * 2

    held = [normal(8, 48, grad=True)]
    result = checked(lambda x: Doubles.apply(x, backward), held[0], reference=lambda x: x * 2)
    assert result.problems == [
        "argument 0 was modified in the backward pass; where that is meant, declare it: clobbers=(0,)"
    ]


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


def test_inputs_that_are_used_up_on_purpose_are_declared() -> None:
    x = normal(8, 48, grad=True)
    kept = x.detach().clone()
    accused = checked(InPlace.apply, x, reference=squares)
    gradients = "the incoming gradient of output 0 was modified in the backward pass; where that is meant, declare it: "
    gradients += 'clobbers=("gradients",)'
    argument = "argument 0 was modified; where that is meant, declare it: clobbers=(0,)"
    assert accused.problems == [argument, gradients]
    assert checked(InPlace.apply, x, reference=squares, clobbers=(0,)).problems == [gradients]
    assert checked(InPlace.apply, x, reference=squares, clobbers=(0, "gradients")).wrong == []
    assert torch.equal(x, kept)


def test_what_is_used_up_is_still_checked() -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        y = InPlace.apply(x)
        return y * 1.1

    assert checked(wrong, normal(8, 48, grad=True), reference=squares, clobbers=(0, "gradients")).wrong


def test_a_write_beside_a_sliced_input_is_found() -> None:
    base = normal(16, 48)
    x = base[4:12]

    def candidate(x: torch.Tensor) -> torch.Tensor:
        base[12, 0] = 5
        return scale_rows(x)

    text = only_problem(checked(candidate, x, reference=scale_rows))
    assert text == "memory beside argument 0, in the same storage, was written"
    declared = checked(lambda x: (x.add_(1), base[0].zero_())[0], x, reference=lambda x: x.add_(1), mutates=(0,))
    assert declared.problems == ["memory beside argument 0, in the same storage, was written"]


def test_strides_of_the_inputs_reach_the_candidate() -> None:
    seen = []

    def candidate(x: torch.Tensor) -> torch.Tensor:
        seen.append((x.stride(), x.storage_offset() % 256))  # a guard before it is 256 elements, which align to all
        return scale_rows(x)

    x = normal(64, 40).t()[3:]
    assert checked(candidate, x, reference=scale_rows).wrong == []
    assert set(seen) == {(x.stride(), x.storage_offset())}
    row = normal(1, 40).expand(16, 40)
    assert checked(scale_rows, row, reference=scale_rows).wrong == []


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
    ("offset", "words"), [(384, "2 bytes past its end, from offset 768 on"), (-2, "before its start, from offset -4")]
)
def test_a_write_past_an_end_of_an_output_is_found(offset: int, words: str) -> None:
    def candidate(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        out.copy_(scale_rows(x))
        Buffer(out).at(offset).fill_(1)
        return out

    text = only_problem(checked(candidate, normal(8, 48), reference=scale_rows))
    assert text.startswith("out of bounds: bfloat16[8,48], empty_like at tests/check/test_correctness.py:")
    assert f" in candidate, of 768 bytes: {words}" in text or words in text


@pytest.mark.parametrize("offset", [384, -1])
def test_a_read_beside_an_input_is_found(offset: int) -> None:
    def candidate(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return scale_rows(x) + y.sum() + Buffer(x).at(offset) * 0

    def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return scale_rows(x) + y.sum()

    text = only_problem(checked(candidate, normal(8, 48), normal(4, 4, seed=1), reference=reference))
    assert text.startswith("output: depends on memory beside argument 0: 384 of 384 elements change")


def squared(x: torch.Tensor) -> torch.Tensor:
    return x @ x


@pytest.mark.parametrize("first", range(3, 9))
def test_a_sum_that_differs_by_chance_depends_on_no_memory(first: int) -> None:
    """Atomic additions change the last bit in few calls, and may do so first where the inputs lie between guards."""
    calls = 0

    def candidate(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        product = squared(x)
        if calls in (first, first + 2):
            product[0, 0] *= 1 + 2**-7
        return product

    assert checked(candidate, normal(48, 48), reference=squared).wrong == []


def test_a_small_change_that_depends_on_memory_beside_is_found() -> None:
    def candidate(x: torch.Tensor) -> torch.Tensor:
        product = squared(x)
        product[0, 0] *= 1 + 2**-7 * Buffer(x).at(x.numel()).isnan()
        return product

    text = only_problem(checked(candidate, normal(48, 48), reference=squared))
    assert text.startswith("output: depends on memory beside argument 0: 1 of 2304 elements change")


def test_a_read_between_the_rows_of_a_slice_is_found() -> None:
    x = normal(8, 64)[:, :48]
    text = only_problem(checked(lambda x: scale_rows(x) + Buffer(x).at(50) * 0, x, reference=scale_rows))
    assert "depends on memory beside argument 0" in text


def test_inputs_that_share_memory_share_it_between_guards() -> None:
    x = normal(8, 48)
    row = x[:1].expand(8, 48)

    def adds(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        assert x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
        return x + y

    assert checked(adds, x, row, reference=lambda x, y: x + y).wrong == []


def test_an_input_whose_memory_is_freed_is_named_and_there_again() -> None:
    x = normal(8, 48)
    before = x.clone()

    def frees(x: torch.Tensor) -> torch.Tensor:
        y = scale_rows(x)
        x.untyped_storage().resize_(0)
        return y

    assert only_problem(checked(frees, x, reference=scale_rows)) == "argument 0: its memory was freed by the call"
    assert torch.equal(x, before)


# ---- run to run (K25, K27)


def test_a_difference_from_run_to_run_above_eager_error_is_wrong() -> None:
    calls = []

    def candidate(x: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        out = scale_rows(x)
        out[len(calls) % 5, 3] += 1
        return out

    result = checked(candidate, normal(8, 48), reference=scale_rows)
    assert any(
        "output: differs from run to run: " in problem and "of 10 further runs differ; by RMSE" in problem
        for problem in result.problems
    )
    assert not any("depends on old memory" in problem for problem in result.problems)


def test_a_first_call_that_differs_is_told_apart() -> None:
    calls = []

    def candidate(x: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        return scale_rows(x) + (len(calls) == 1)

    result = checked(candidate, normal(8, 48), reference=scale_rows)
    assert any("output: the first call differs from later ones" in problem for problem in result.problems)


def test_a_difference_from_run_to_run_below_eager_error_passes() -> None:
    calls = []

    def candidate(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        return matmul(a, b) if len(calls) % 2 else (a.float() @ b.float() * (1 + 2.0**-12)).bfloat16()

    assert checked(candidate, normal(40, 64), normal(64, 40, seed=1), reference=matmul).wrong == []
    assert len(calls) > 3


def test_random_numbers_are_the_same_in_every_run_and_leave_the_users_alone() -> None:
    def drop(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5)

    before = torch.get_rng_state()
    assert checked(drop, normal(8, 48, dtype=torch.float64), reference=drop).wrong == []
    assert torch.equal(torch.get_rng_state(), before)


# ---- structure, oracle, errors


def test_other_outputs_than_the_reference() -> None:
    result = checked(lambda x: (x, x), normal(4, 32), reference=lambda x: x)
    assert result.problems == ["outputs: the candidate returns output 0, output 1; the reference returns output"]
    numbers = checked(lambda x: (x, 3), normal(4, 32), reference=lambda x: (x, 4))
    assert only_problem(numbers).startswith("outputs: beside tensors the candidate returns [3]")


def test_a_reference_that_refuses_float64_says_what_to_do() -> None:
    def refuses(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is torch.float64:
            raise ValueError("x: float64 is refused")
        return x * 2

    x = normal(8, 48)
    with pytest.raises(MeasurementError, match=r"^reference: raised .* in float64 .*oracle='float32'"):
        checked(refuses, x, reference=refuses)
    assert checked(refuses, x, reference=refuses, oracle="float32").wrong == []


def test_an_oracle_that_would_not_fit_is_float32_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfguard.check.numerics.oracle.free_bytes", lambda _: 1e3)
    result = checked(matmul, normal(40, 64), normal(64, 40, seed=1), reference=matmul)
    assert result.wrong == []
    assert result.notes == ["oracle: float32, since float64 would take over a quarter of the free memory"]


def test_an_oracle_that_runs_out_of_memory_is_float32_and_says_so() -> None:
    """Its temporaries may be far larger than its inputs and results."""
    asked = []

    def wide_temporaries(x: torch.Tensor) -> torch.Tensor:
        asked.append(x.dtype)
        if x.dtype is torch.float64:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 40.00 GiB")
        return x * 2

    x = normal(8, 48)
    result = checked(lambda x: x * 2, x, reference=wide_temporaries)
    assert result.wrong == []
    assert result.notes == ["oracle: float32, since float64 ran out of memory"]
    assert asked == [x.dtype, torch.float64, torch.float32]
    with pytest.raises(MeasurementError, match=r"in float64 \(OutOfMemoryError.*oracle='float32'"):
        checked(lambda x: x * 2, x, reference=wide_temporaries, oracle="float64")


def test_what_the_candidate_raises_comes_out_with_the_run_it_was_raised_in() -> None:
    def candidate(x: torch.Tensor) -> torch.Tensor:
        # More than any heap hands out a second time (64 MiB): zeros of the kernel's, unless it is poisoned.
        if bool(torch.empty(1 << 24).isnan().any()):
            raise ValueError("bad memory")
        return x

    with pytest.raises(ValueError, match="bad memory") as caught:
        checked(candidate, normal(4, 32), reference=lambda x: x)
    assert "fresh memory filled with NaN" in caught.value.__notes__[0]


def test_quick_checks_still_compare_and_poison_once() -> None:
    calls = []

    def candidate(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        return sum_groups(x, ends)

    assert check(Call(candidate, (normal(60, 48), GROUPS), sum_groups), full=False).wrong == []
    assert len(calls) == 2
    wrong = check(Call(skips_empty_groups, (normal(60, 48), GROUPS), sum_groups), full=False)
    assert any("depends on old memory" in problem for problem in wrong.problems)


def test_a_quick_check_names_old_memory_that_held_its_own_poison() -> None:
    calls = []

    def candidate(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        with poisoned("nan") if len(calls) == 1 else nullcontext():
            return skips_empty_groups(x, ends)

    wrong = check(Call(candidate, (normal(60, 48), GROUPS), sum_groups), full=False)
    assert any("depends on old memory: 48 of 192 elements change" in problem for problem in wrong.problems)


def test_a_tolerance_reaches_the_codes() -> None:
    def stepped(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        codes, scale = quantize(x)
        pattern = codes.view(torch.uint8).clone()
        pattern[0, :4] = torch.where(pattern[0, :4] & 0x7F > 1, pattern[0, :4] - 1, pattern[0, :4])
        return pattern.view(FN), scale

    x = normal(64, 48)
    assert "0 of them by more than one step" in only_problem(checked(stepped, x, reference=quantize))
    allowed = Tolerance(fp8_step_fraction=0.04, reason="the interpreter's cast")
    assert checked(stepped, x, reference=quantize, tolerance=allowed).wrong == []


# ---- modules


@pytest.mark.parametrize("closure", [True, False])
def test_parameters_of_a_module_are_inputs(closure: bool) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(48, 40, dtype=torch.bfloat16)
    reference = (lambda x: torch.nn.functional.linear(x, layer.weight, layer.bias)) if closure else layer
    result = checked(layer, normal(64, 48), reference=reference)
    assert result.wrong == []
    assert result.backward is not None
    assert [a.output for a in result.backward] == ["gradient of parameter weight", "gradient of parameter bias"]
    assert result.backward[0].sqnr_db == pytest.approx(55.6, abs=0.5)
    assert layer.weight.grad is None


def test_a_parameter_without_gradient_is_named() -> None:
    class Forgets(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.linear(input, self.weight, self.bias.detach())

    torch.manual_seed(0)
    layer = Forgets(48, 40, dtype=torch.bfloat16)
    result = checked(layer, normal(64, 48), reference=lambda x: torch.nn.functional.linear(x, layer.weight, layer.bias))
    assert "no gradient for parameter bias" in only_problem(result)


def test_a_reference_with_other_parameters_is_refused() -> None:
    layer, other = torch.nn.Linear(48, 40), torch.nn.Linear(48, 40, bias=False)
    with pytest.raises(UsageError, match=r"^reference: has 1 parameters"):
        checked(layer, normal(4, 48, dtype=torch.float32), reference=other)


# ---- the inputs as text


def test_inputs_are_described_the_same_in_every_process() -> None:
    x = normal(64, 40, grad=True)
    call = Call(scale_rows, (x, x.t(), [GROUPS, 3]), scale_rows, {"k": 2, "act": torch.relu, "o": object()})
    assert Inputs(call).describe() == (
        "bfloat16[64,40] grad; bfloat16[40,64] strides (1,40) grad; int32[4]; 3; k=2; "
        f"act={torch.relu.__qualname__}; o=<object object>"
    )


# ---- cached results


def test_results_cached_by_address_are_wrong() -> None:
    cache: dict[object, torch.Tensor] = {}

    def cached(x: torch.Tensor) -> torch.Tensor:
        key = (x.data_ptr(), x.shape)
        if key not in cache:
            cache[key] = scale_rows(x)
        return cache[key].clone()

    problem = only_problem(checked(cached, normal(8, 16), reference=scale_rows))
    assert problem.startswith("output: returns cached results")


def test_one_cached_output_of_two_is_named() -> None:
    cache: dict[int, torch.Tensor] = {}

    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = cache.setdefault(x.data_ptr(), x + 1)
        return first.clone(), 2 * x

    problem = only_problem(checked(both, normal(8, 16), reference=lambda x: (x + 1, 2 * x)))
    assert problem.startswith("output 0: returns cached results")


def test_a_cache_that_looks_at_the_version_is_right() -> None:
    cache: dict[object, torch.Tensor] = {}

    def versioned(x: torch.Tensor) -> torch.Tensor:
        key = (x.data_ptr(), x._version)
        if key not in cache:
            cache[key] = scale_rows(x)
        return cache[key].clone()

    x = normal(8, 16)
    before = x.clone()
    assert checked(versioned, x, reference=scale_rows).wrong == []
    assert torch.equal(x, before)
    assert torch.equal(versioned(x), scale_rows(x))  # also afterwards


@pytest.mark.parametrize(
    ("fn", "inputs"),
    [
        (lambda x: x.double().sum(0).to(x.dtype), normal(64, 16)),  # another order of rows, another rounding
        (lambda x: x.abs().amax(), normal(8, 16)),
        (lambda x: x + 1, torch.ones(4, 4)),
        (lambda x: x * 2, torch.ones(1, 1)),
        (lambda x: x * 2, normal(1, 8).expand(4, 8)),
        (lambda x: x * 2, torch.arange(12).view(3, 4)),
        (lambda x: x * 2, normal(0, 4)),
        (lambda x: x.cumsum(1), torch.stack([normal(4, 4)] * 2)),
    ],
)
def test_what_the_order_of_rows_does_not_change_is_right(fn: Callable[..., Any], inputs: torch.Tensor) -> None:
    assert checked(fn, inputs, reference=fn).wrong == []


def test_inputs_that_must_stay_in_order_tell_nothing() -> None:
    def sorted_only(x: torch.Tensor) -> torch.Tensor:
        if bool((x.diff() < 0).any()):
            raise ValueError("x: must be sorted")
        return 2 * x

    assert checked(sorted_only, torch.arange(8.0), reference=lambda x: 2 * x).wrong == []


def test_written_inputs_come_back_after_they_were_moved() -> None:
    def double_(x: torch.Tensor) -> None:
        x.mul_(2)

    x = normal(8, 4)
    before = x.clone()
    assert checked(double_, x, reference=double_, mutates=(0,)).wrong == []
    assert torch.equal(x, before)
