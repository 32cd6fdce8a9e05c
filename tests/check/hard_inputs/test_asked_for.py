"""Kinds of derived inputs that a call or its code asks for: each finds faults that the given inputs hide, whatever the
order of the others, in words that name it, and accuses no correct twin."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from perfguard import Hard, Tolerance, ids
from perfguard.check.correctness import check
from perfguard.check.hard_inputs.code import code_of
from perfguard.check.hard_inputs.derivation import Derivation, derived_call
from perfguard.check.hard_inputs.patterns import TOLD
from perfguard.check.hard_inputs.scalars import unchecked
from perfguard.check.hard_inputs.search import run_hard
from perfguard.check.hard_inputs.sizes import kept_by, sizes_of
from perfguard.model.call import HARD_KINDS, Call
from tests.check.hard_inputs.operators import normal

ONE_EACH = 1e-9  # leaves one turn to each kind of a cheap call, whatever the machine
EVERYTHING = 60.0
PROGRAMS, LIMIT = 48, 700
EPSILON = 1e-10
CPU = torch.device("cpu")


def plain(*shape: int, seed: int = 0) -> torch.Tensor:
    return normal(*shape, seed=seed, grad=False)


@dataclass(frozen=True)
class Case:
    """A fault, its correct twin, and a part of the words that tell of the fault."""

    wrong: Callable[..., Any]
    right: Callable[..., Any]
    reference: Callable[..., Any]
    args: tuple[Any, ...]
    words: str


# -- sizes -------------------------------------------------------------------------------------------------------------


def distances(x: torch.Tensor, y: torch.Tensor, rows: int | None = None) -> torch.Tensor:
    """The square distances of the first `rows` of x to y, all others 0."""
    found = x.new_zeros(len(x), len(y))
    found[:rows] = (x[:rows, None] - y[None]).square().sum(-1)
    return found


def distances_by_columns(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return distances(x, y, len(y))


def repeated_heads(q: torch.Tensor, k: torch.Tensor, order: str) -> torch.Tensor:
    """Scores of query heads with the key head of their group."""
    times = q.shape[0] // k.shape[0]
    return q @ (k.repeat_interleave(times, 0) if order == "inner" else k.repeat(times, 1, 1)).transpose(-1, -2)


def by_few_programs(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for row in range(min(len(x), PROGRAMS)):
        out[row] = x[row] * 2
    return out


def in_turns(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for row in range(min(len(x), PROGRAMS)):
        out[row::PROGRAMS] = x[row::PROGRAMS] * 2
    return out


def of_wide_rows(x: torch.Tensor, limit: int, lost: int) -> torch.Tensor:
    return x[:, lost:].square().sum(-1) if x.shape[-1] > limit else x.square().sum(-1)


def launched(x: torch.Tensor) -> torch.Tensor:
    """Passes its limit on, as launches pass constants to kernels."""
    return of_wide_rows(x, limit=LIMIT, lost=1)


def summed(x: torch.Tensor) -> torch.Tensor:
    return of_wide_rows(x, limit=LIMIT, lost=0)


# -- numbers, ids and magnitudes ---------------------------------------------------------------------------------------


def decayed(x: torch.Tensor, gradient: torch.Tensor, lr: float = 0.5, decay: float = 0.0) -> torch.Tensor:
    return x - lr * (gradient + decay * x)


def decayed_apart(x: torch.Tensor, gradient: torch.Tensor, lr: float = 0.5, decay: float = 0.0) -> torch.Tensor:
    return x - lr * gradient - decay * x


def decayed_in_turn(x: torch.Tensor, gradient: torch.Tensor, lr: float = 0.5, decay: float = 0.0) -> torch.Tensor:
    return (1 - lr * decay) * x - lr * gradient


def scores(x: torch.Tensor, causal: bool, scale: float | None = None) -> torch.Tensor:
    found = x @ x.T * (x.shape[1] ** -0.5 if scale is None else scale)
    return found.tril() if causal else found


def scores_unscaled(x: torch.Tensor, causal: bool, scale: float | None = None) -> torch.Tensor:
    return scores(x, causal, None if scale is None else scale * x.shape[1] ** -0.5)


def labels() -> torch.Tensor:
    return torch.arange(24) % 5


def counted_but(x: torch.Tensor, index: torch.Tensor, ignored: int = -100) -> torch.Tensor:
    return x.sum(-1).where(index != ignored, 0).sum()


def counted_but_100(x: torch.Tensor, index: torch.Tensor, ignored: int = -100) -> torch.Tensor:
    return x.sum(-1).where(index != -100, 0).sum()


def some_without_label() -> torch.Tensor:
    index = labels()
    index[::4] = -100
    return ids(index, 5, ignored=-100)


def chosen(x: torch.Tensor, index: torch.Tensor, ignored: int = -100) -> torch.Tensor:
    """Refuses what is neither ignored nor an index."""
    return F.nll_loss(x, index, ignore_index=ignored, reduction="sum")


def chosen_but(x: torch.Tensor, index: torch.Tensor, ignored: int = -100) -> torch.Tensor:
    kept = index != ignored
    return -x[kept, index[kept]].sum()


def chosen_but_100(x: torch.Tensor, index: torch.Tensor, ignored: int = -100) -> torch.Tensor:
    return chosen_but(x, index)


def scaled(x: torch.Tensor, gain: float = 1.0, shift: float = 0.0) -> torch.Tensor:
    return x * gain + shift


def scaled_alone(x: torch.Tensor, gain: float = 1.0, shift: float = 0.0) -> torch.Tensor:
    return x * gain


def largest(x: torch.Tensor, block: int = 64) -> torch.Tensor:
    return x.reshape(-1, block).amax(-1)


def largest_of_first_part(x: torch.Tensor, block: int = 64) -> torch.Tensor:
    groups = x.reshape(-1, block)
    return groups.amax(-1) if block < 512 else groups[:, :256].amax(-1)


def largest_by_parts(x: torch.Tensor, block: int = 64) -> torch.Tensor:
    groups = x.reshape(-1, block)
    return groups.amax(-1) if block < 512 else groups[:, :256].amax(-1).maximum(groups[:, 256:].amax(-1))


def counted(table: torch.Tensor, index: torch.Tensor, stops: bool) -> torch.Tensor:
    """Sums rows of a table by blocks of 24 ids; `stops` at the first block without one."""
    total = torch.zeros_like(table[0])
    for part in index.split(24):
        known = part[part != -1]
        if stops and not len(known):
            break
        total = total + table[known].sum(0)
    return total


def some_unknown() -> torch.Tensor:
    index = torch.arange(90) % 12
    index[::5] = -1
    return index


def normed(x: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt()


def normed_by_two_steps(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON)


def normed_outside(x: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True).sqrt() + EPSILON)


def turned_by(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """The table is that of all sequences, or has one for each."""
    return torch.stack([each * (table[at] if table.ndim == 3 else table) for at, each in enumerate(x)])


def turned_by_first(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return x * (table[:1] if table.dim() == 3 else table)


# -- gradients ---------------------------------------------------------------------------------------------------------


def differentiated(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """An autograd function of one tensor; `backward` is given the input, the output and the incoming gradient."""

    class Made(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = forward(x)
            ctx.save_for_backward(x, out)
            return out

        @staticmethod
        def backward(ctx: Any, *incoming: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = backward(*ctx.saved_tensors, *incoming)
            return made

    return Made.apply


def silu_slope(x: torch.Tensor, _: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    s = torch.sigmoid(x)
    return g * s * (1 + x * (1 - s))


def silu_slope_up_to_30(x: torch.Tensor, out: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 30, 0.0, silu_slope(x, out, g))


def softmax_slope(x: torch.Tensor, p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """Leaves a rounding of the incoming gradient where eager leaves 0."""
    return p * g - p * (p * g).sum(-1, keepdim=True) * (1 + 2.0**-23)


def softmax_slope_without_sum(_: torch.Tensor, p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return torch.where(p > 0.999999, g, p * (g - (p * g).sum(-1, keepdim=True)))


softmax = partial(torch.softmax, dim=-1)


def reduced(x: torch.Tensor, how: str = "mean") -> torch.Tensor:
    return x.mean() if how == "mean" else x.sum() if how == "sum" else x


def always_mean(x: torch.Tensor, how: str = "mean") -> torch.Tensor:
    return {"mean": x.mean(), "sum": x.mean()}.get(how, x)


def stepped(values: list[torch.Tensor], steps: list[torch.Tensor]) -> list[torch.Tensor]:
    return [value / step for value, step in zip(values, steps, strict=True)]


def running(x: torch.Tensor, chunk: int = 8, most: int = 64) -> torch.Tensor:
    """A running sum, by chunks of which `most` rows count."""
    state, out = torch.zeros_like(x[0]), []
    for part in x.split(chunk):
        own = state + part.where(torch.arange(len(part))[:, None] < most, 0).cumsum(0)
        state = own[-1]
        out.append(own)
    return torch.cat(out)


def running_up_to_12(x: torch.Tensor, chunk: int = 8) -> torch.Tensor:
    return running(x, chunk, most=12)


def means(x: torch.Tensor, lengths: torch.Tensor, page: int = 1) -> torch.Tensor:
    """The mean of each row's first elements, in whole pages."""
    pages = -(-lengths // page) * page
    inside = torch.arange(x.shape[1]) < pages[:, None]
    return x.where(inside, 0).sum(-1) / lengths


def means_of_pages(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return means(x, lengths, page=4)


def means_in_turn(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return torch.stack([row[:length].mean() for row, length in zip(x, lengths, strict=True)])


LENGTHS = torch.tensor([16, 8, 12])
COUNTS, STARTS = torch.tensor([3, 8, 4, 9]), torch.tensor([0, 3, 11, 15, 24])


def sums_of_groups(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    return torch.stack([part.sum(0) for part in x.split(counts.tolist())])


def sums_from_starts(x: torch.Tensor, starts: torch.Tensor, least: int = 0) -> torch.Tensor:
    """(M, K), (G + 1,) -> (G, K); a group has at least so many rows."""
    before = torch.cat([x.new_zeros(1, x.shape[1]), x.cumsum(0)])
    ends = torch.maximum(starts[1:], starts[:-1] + least).clamp(max=len(x))
    return before[ends] - before[starts[:-1]]


def sums_of_counts(x: torch.Tensor, counts: torch.Tensor, least: int = 0) -> torch.Tensor:
    return sums_from_starts(x, torch.cat([counts.new_zeros(1), counts.cumsum(0)]), least)


def sums_of_kept(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return x.where(keep, 0).sum(-1)


def means_in_pages(x: torch.Tensor, lengths: torch.Tensor, beyond: int = 0) -> torch.Tensor:
    """(B, P, T), (B,) -> (B,): the mean of each row's first elements, page by page; a page too many is `beyond`."""
    size, made = x.shape[2], []
    for row, length in zip(x, lengths.tolist(), strict=True):
        count = length // size + beyond if beyond else -(-length // size)
        made.append(row[:count].flatten()[: length if length % size else count * size].mean())
    return torch.stack(made)


PAGED = torch.tensor([18, 7, 13])


def means_without_pages(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return means_in_turn(x.flatten(1), lengths)


def best(x: torch.Tensor) -> torch.Tensor:
    return x.argmax(-1)


def best_in_a_byte(x: torch.Tensor) -> torch.Tensor:
    return best(x).to(torch.uint8).long()


def best_in_what_it_needs(x: torch.Tensor) -> torch.Tensor:
    return best_in_a_byte(x) if x.shape[-1] <= 256 else best(x)


def kept_share(x: torch.Tensor, share: float) -> torch.Tensor:
    return x * (1 / (1 - share)) if share < 1 else x * 0


LEAST = -20.0


def largest_from(x: torch.Tensor, has_least: bool = False) -> torch.Tensor:
    """The largest of each row, by a running maximum that begins with a number or without one."""
    made = x.new_full((len(x),), LEAST if has_least else -math.inf)
    for column in x.unbind(-1):
        made = made.maximum(column)
    return made


def best_score_from(q: torch.Tensor, k: torch.Tensor, has_least: bool = False) -> torch.Tensor:
    return largest_from(q @ k.T, has_least)


def mean_of_first(x: torch.Tensor, first: int | None = None) -> torch.Tensor:
    return x[:, :first].mean(-1)


def mean_of_first_by_width(x: torch.Tensor, first: int | None = None) -> torch.Tensor:
    return x[:, :first].sum(-1) / x.shape[1]


CASES = {
    "equal sizes": [
        Case(distances_by_columns, distances, lambda x, y: torch.cdist(x, y).square(), (plain(24, 8), plain(24, 8)),
             "argument 1 (dim 0 cut to"),
        Case(partial(repeated_heads, order="outer"), partial(repeated_heads, order="inner"),
             lambda q, k: torch.stack([q[at] @ k[at * len(k) // len(q)].T for at in range(len(q))]),
             (plain(8, 20, 16), plain(8, 30, 16)), "dim 0 cut to 4"),
    ],
    "thresholds": [
        Case(by_few_programs, in_turns, lambda x: x * 2, (plain(20, 12),),
             "right at 20, 32 and 48, wrong at 49: what is beyond 48"),
        Case(launched, summed, lambda x: x.square().sum(-1), (plain(20, 12),), "dim 1 grown to 701"),
        Case(turned_by_first, turned_by, torch.mul, (plain(1, 6, 8), plain(6, 8, seed=1)),
             "argument 0 (dim 0 grown to 2) and argument 1 (leading dim grown to 2)"),
        Case(turned_by_first, turned_by, torch.mul, (plain(3, 6, 8), plain(6, 8, seed=1)),
             "argument 1 (leading dim grown to 3)"),
        Case(best_in_a_byte, best_in_what_it_needs, best, (plain(40, 32),), "dim 1 grown to 512, "),
        Case(partial(largest_from, has_least=True), largest_from, lambda x: x.amax(-1), (plain(8, 12),),
             "argument 0 (shifted by -41)"),
        Case(partial(best_score_from, has_least=True), best_score_from, lambda q, k: (q @ k.T).amax(-1),
             (plain(8, 12), plain(9, 12, seed=1)),
             "argument 0 (positive, times 2^10) and argument 1 (negative, times 2^10)"),
    ],
    "scalars": [
        Case(decayed_apart, decayed_in_turn, decayed, (plain(8, 12), plain(8, 12, seed=1)), "options (decay=0.125)"),
        Case(lambda x, causal: x @ x.T * 0.25, scores, scores, (plain(9, 16), False), "True for False"),
        Case(scores_unscaled, scores, scores, (plain(9, 16), True), "options (scale=0.5)"),
        Case(counted_but_100, counted_but, counted_but, (plain(24, 12), labels()), "options (ignored=0)"),
        Case(chosen_but_100, chosen_but, chosen, (plain(24, 5), some_without_label()),
             "argument 1 (-100 replaced by 0) and options (ignored=0)"),
        Case(scaled_alone, scaled, lambda x, **how: scaled(x, **how), (plain(8, 12),), "options (shift=0.125)"),
        Case(always_mean, lambda x, how="mean": reduced(x, how), reduced, (plain(8, 12),), "options (how='sum')"),
        Case(largest_of_first_part, largest_by_parts, largest, (plain(32, 64),), "options (block=512)"),
        Case(mean_of_first_by_width, mean_of_first, mean_of_first, (plain(8, 12),), "options (first=6)"),
        Case(lambda x, share: x / torch.tensor(1 - share), kept_share, kept_share, (plain(8, 12), 0.25),
             "1.0 for 0.25"),
    ],
    "equal values": [
        Case(lambda x, gain: x * gain[0], lambda x, gain: gain * x, torch.mul, (plain(8, 12), torch.ones(12)),
             "argument 1 (different)"),
        Case(lambda values, steps: stepped(values, [steps[-1]] * 2), stepped, stepped,
             ([plain(8), plain(12)], [torch.tensor(3.0), torch.tensor(3.0)]), "(times 2^1)"),
    ],
    "tuning": [
        Case(running_up_to_12, running, lambda x: x.cumsum(0), (plain(40, 4),), "options (chunk=16)"),
    ],
    "unmarked integers": [
        Case(partial(means_in_pages, beyond=1), means_in_pages, means_without_pages, (plain(3, 5, 4), PAGED),
             "argument 1 (18 replaced by 16)"),
        Case(means_of_pages, means, means_in_turn, (plain(3, 20), LENGTHS), "argument 1 (16 replaced by 15)"),
        Case(partial(sums_of_counts, least=1), sums_of_counts, sums_of_groups, (plain(24, 8), COUNTS),
             "argument 1 (numbers 0 8 7 9)"),
        Case(partial(sums_from_starts, least=1), sums_from_starts,
             lambda x, starts: sums_of_groups(x, starts.diff()), (plain(24, 8), STARTS),
             "argument 1 (numbers 0 0 8 15 24)"),
        Case(lambda x, keep: x.sum(-1), sums_of_kept, lambda x, keep: (x * keep).sum(-1),
             (plain(8, 12), torch.ones(8, 12, dtype=torch.bool)), "argument 1 (every third inverted)"),
    ],
    "runs": [
        Case(partial(counted, stops=True), partial(counted, stops=False),
             lambda table, index: table[index[index >= 0]].sum(0), (plain(12, 8), ids(some_unknown(), 12, ignored=-1)),
             "places 1 to 88 are -1"),
    ],
    "magnitudes": [
        Case(normed_outside, normed_by_two_steps, normed, (plain(8, 64),), "times 2^-"),
    ],
    "gradients": [
        Case(differentiated(F.silu, silu_slope_up_to_30), differentiated(F.silu, silu_slope), F.silu,
             (normal(8, 32, seed=0),), "elements are wrong at large inputs; got 0"),
        Case(differentiated(softmax, softmax_slope_without_sum), differentiated(softmax, softmax_slope), softmax,
             (normal(8, 32, seed=0),), "elements are wrong at large inputs"),
    ],
}  # fmt: skip
EACH = [pytest.param(kind, case, id=f"{kind}-{at}") for kind, cases in CASES.items() for at, case in enumerate(cases)]


def only(kind: str) -> Hard:
    """Gradients at large inputs, and ids beyond a narrow dtype, need values."""
    wanted = {kind, "values"} if kind in ("gradients", "thresholds") else {kind}
    return Hard(without=[each for each in HARD_KINDS if each not in wanted], reason="-")


@pytest.mark.parametrize(("kind", "case"), EACH)
def test_a_fault_is_found_in_the_kinds_turns_and_named(kind: str, case: Case) -> None:
    call = Call(case.wrong, case.args, case.reference, hard=only(kind))
    assert check(call).wrong == []
    problem = run_hard(call, EVERYTHING).problem
    assert case.words in problem
    assert TOLD.get(kind, "large inputs") in problem
    assert "Tolerance" not in problem


@pytest.mark.parametrize(("kind", "case"), EACH)
def test_a_correct_twin_is_not_accused(kind: str, case: Case) -> None:
    call = Call(case.right, case.args, case.reference, hard=only(kind))
    assert check(call).wrong == []
    found = run_hard(call, EVERYTHING)
    assert found.problem == ""
    assert found.ran[kind]
    assert found.waiting == {}


@pytest.mark.parametrize("right", [True, False])
def test_an_option_that_is_switched_off_by_its_default(right: bool) -> None:
    def banded(x: torch.Tensor, left: int = -1, right: int = -1) -> torch.Tensor:
        x = x.tril(right) if right >= 0 else x
        return x.triu(-left) if left >= 0 else x

    def by_one_mask(x: torch.Tensor, left: int = -1, right: int = -1) -> torch.Tensor:
        ahead = torch.arange(x.shape[1]) - torch.arange(x.shape[0])[:, None]
        most = right if right >= 0 else len(ahead)
        return x.where((ahead <= most) & (ahead >= -left), 0) if left >= 0 or right >= 0 else x

    options = {"left": 2, "right": 0}
    call = Call(banded if right else by_one_mask, (plain(9, 9),), banded, kwargs=options, hard=only("scalars"))
    assert check(call).wrong == []
    problem = run_hard(call, EVERYTHING).problem
    assert ("options (left=-1)" in problem) != right
    assert (problem == "") == right


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_the_code_of_an_option_may_compute_in_the_dtype_of_the_inputs(dtype: torch.dtype) -> None:
    """late-interaction-kernels multiplies normalised float16 as float16, beside a reference in float32."""

    def scores(x: torch.Tensor, normalize: bool = False) -> torch.Tensor:
        wide = x.float()
        return wide @ wide.T if not normalize else torch.nn.functional.normalize(wide).square().sum(1)

    def rounded(x: torch.Tensor, normalize: bool = False) -> torch.Tensor:
        return torch.nn.functional.normalize(x.float()).half().float().square().sum(1) if normalize else scores(x)

    found = run_hard(Call(rounded, (plain(8, 32).to(dtype),), scores, hard=only("scalars")), EVERYTHING)
    assert ("options (normalize=True)" in found.problem) == (dtype == torch.float32)


def test_the_most_telling_input_has_the_first_turn_in_every_order_and_again_with_other_code() -> None:
    case = CASES["thresholds"][0]
    right, wrong = (Call(fn, case.args, case.reference) for fn in (case.right, case.wrong))
    for rotation in range(4):
        first = run_hard(right, ONE_EACH, rotation)
        assert first.reached is not None
        assert first.reached.done["thresholds"] == 1
        assert case.words in run_hard(wrong, ONE_EACH, rotation, reached=first.reached).problem
        same = run_hard(right, ONE_EACH, rotation, reached=first.reached)
        assert same.reached is not None
        assert same.reached.done["thresholds"] == 2


def test_an_option_is_tuned_and_integers_are_free_only_where_another_value_is_right_too() -> None:
    """Blocks of a quantiser are no tuning, and sums of segments may need sorted ids."""

    def in_blocks(x: torch.Tensor, block: int = 8) -> torch.Tensor:
        return x.unflatten(-1, (-1, block)).amax(-1)

    call = Call(in_blocks, (plain(4, 32),), lambda x: x.reshape(4, -1, 8).amax(-1), hard=only("tuning"))
    assert run_hard(call, EVERYTHING).problem == ""

    def of_runs(x: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        names, counts = groups.unique_consecutive(return_counts=True)
        sums = [part.sum(0) for part in x.split(counts.tolist())]
        return torch.stack([x.new_zeros(x.shape[1]), *sums])[: int(names.max()) + 2]

    groups = torch.tensor([0, 0, 2, 1, 1])

    def reference(x: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        return of_runs(x, groups) if groups.tolist() == [0, 0, 2, 1, 1] else x.new_ones(4, x.shape[1])

    found = run_hard(Call(of_runs, (plain(5, 3), groups), reference, hard=only("unmarked integers")), EVERYTHING)
    assert found.problem == ""
    assert found.left_out


def test_counts_and_booleans_accuse_nobody_without_evidence() -> None:
    """Rows may be told their group by another input, the largest group by a number, and a mask may go unread."""

    def by_groups(x: torch.Tensor, counts: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(len(counts), x.shape[1]).index_add(0, groups, x)

    def by_counts(x: torch.Tensor, counts: torch.Tensor, _: Any) -> torch.Tensor:
        return sums_of_groups(x, counts)

    def of_most(x: torch.Tensor, counts: torch.Tensor, most: int) -> torch.Tensor:
        padded = [F.pad(part[:most], (0, 0, 0, most)) for part in x.split(counts.tolist())]
        return torch.stack([each[:most].sum(0) for each in padded])

    def from_behind(x: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(16, 8).index_copy(0, slots.flip(0), x.flip(0))

    slots = torch.tensor([8, 13, 3])
    groups = torch.arange(4).repeat_interleave(COUNTS)
    unread = torch.ones(24, dtype=torch.bool)
    for candidate, reference, args in (
        (by_groups, by_counts, (plain(24, 8), COUNTS, groups)),
        (of_most, by_counts, (plain(24, 8), COUNTS, int(COUNTS.max()))),
        (lambda x, keep: x.where(keep[:, None], 0), lambda x, keep: x * 1, (plain(24, 8), unread)),
        (from_behind, lambda x, slots: x.new_zeros(16, 8).index_copy(0, slots, x), (plain(3, 8), slots)),
    ):
        found = run_hard(Call(candidate, args, reference, hard=only("unmarked integers")), EVERYTHING)
        assert found.problem == ""
        assert found.left_out or found.ran


def test_rows_of_a_choice_hold_the_reference_s_values_whichever_of_equal_ones_is_chosen() -> None:
    def kept(x: torch.Tensor) -> torch.Tensor:
        best = x.topk(3, -1)
        return torch.zeros_like(x).scatter(-1, best.indices, best.values)

    def from_behind(x: torch.Tensor) -> torch.Tensor:
        order = x.flip(-1).sort(stable=True, dim=-1, descending=True).indices[:, :3]
        keep = torch.zeros_like(x, dtype=torch.bool).scatter(-1, x.shape[-1] - 1 - order, True)
        return x.where(keep, 0)

    def and_ties(x: torch.Tensor) -> torch.Tensor:
        return x.where(x >= x.topk(3, -1).values[:, -1:], 0)

    wrong, right = (Call(fn, (plain(8, 20),), kept, hard=only("values")) for fn in (and_ties, from_behind))
    assert check(wrong).wrong == []
    assert "has other values than the reference's, whichever of equal ones" in run_hard(wrong, EVERYTHING).problem
    assert run_hard(right, EVERYTHING).problem == ""


# -- what is no truth --------------------------------------------------------------------------------------------------


def truncated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Stops where the shorter one ends, in silence."""
    return torch.stack([a * b for a, b in zip(x, y, strict=False)])


def of_all_rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    rows = min(len(x), len(y))
    return x[:rows] * y[:rows] if len(x) == len(y) else x[:rows] * 0


def dropped(x: torch.Tensor, p: float = 0.0) -> torch.Tensor:
    return F.dropout(x, p)


def dropped_by_rows(x: torch.Tensor, p: float = 0.0) -> torch.Tensor:
    return x * (torch.rand(len(x), 1) >= p) / (1 - p)


def doubled(x: torch.Tensor, fast: bool = False) -> torch.Tensor:
    return x * 2


def doubled_fast(x: torch.Tensor, fast: bool = False) -> torch.Tensor:
    return x.to(torch.bfloat16).float() * 2 if fast else x * 2


def in_place(x: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    return x.mul_(2) if inplace else x * 2


def in_its_own_way(x: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    return x.add_(x) if inplace else x + x


def shifted(x: torch.Tensor, bias: Any = None) -> torch.Tensor:
    return x if bias is None else x + bias


def shifted_by_a_tensor(x: torch.Tensor, bias: Any = None) -> torch.Tensor:
    return x if bias is None else x.add(bias.to(x.dtype))


@pytest.mark.parametrize(
    ("fn", "reference", "args"),
    [
        (of_all_rows, truncated, (plain(24, 8), plain(24, 8, seed=1))),
        (dropped_by_rows, dropped, (plain(8, 8),)),
        (doubled_fast, doubled, (plain(8, 8),)),
        (in_its_own_way, in_place, (plain(8, 8),)),
        (shifted_by_a_tensor, shifted, (plain(8, 8),)),
    ],
)
def test_where_the_reference_says_nothing_nothing_is_judged(
    fn: Callable[..., Any], reference: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    for kind in ("equal sizes", "scalars"):
        call = Call(fn, args, reference, hard=only(kind))
        assert check(call).wrong == []
        assert run_hard(call, EVERYTHING).problem == ""


def halved(x: torch.Tensor, scale: Any = None, stop: Any = None) -> torch.Tensor:
    """Half of the scaled input, or zeros if the flag is set."""
    found = x if scale is None else x / scale
    return found / 2 if stop is None else torch.where(stop != 0, 0 * x, found / 2)


def stopped_beside_a_scale(x: torch.Tensor, scale: Any = None, stop: Any = None) -> torch.Tensor:
    return halved(x, scale, None if scale is None else stop)


@pytest.mark.parametrize("fault", [True, False])
def test_a_tensor_is_left_out_while_a_flag_is_set(fault: bool) -> None:
    given = {"scale": torch.tensor(4.0), "stop": torch.tensor(0.0)}
    fn = stopped_beside_a_scale if fault else halved
    call = Call(fn, (plain(8, 12),), halved, kwargs=given, hard=only("scalars"))
    problem = run_hard(call, EVERYTHING).problem
    assert "argument stop (ones) and options (scale=None): output" in problem if fault else problem == ""


def ranges(x: torch.Tensor, fault: bool) -> torch.Tensor:
    """The ranges of rows; `fault`: with a zero for each lane up to a multiple of four."""
    lanes = F.pad(x, (0, -x.shape[1] % 4)) if fault else x
    return lanes.amax(1) - lanes.amin(1)


@pytest.mark.parametrize("fault", [True, False])
def test_lanes_beyond_the_last_column_are_larger_than_all(fault: bool) -> None:
    hard = Hard(without=[each for each in HARD_KINDS if each not in ("sizes", "values")], reason="-")
    call = Call(partial(ranges, fault=fault), (plain(32, 16),), partial(ranges, fault=False), hard=hard)
    problem = run_hard(call, EVERYTHING).problem
    assert "dim 1 cut to 15, row" in problem if fault else problem == ""


def test_masks_of_bytes_only_where_a_reference_makes_booleans_of_them() -> None:
    args = (plain(8, 12), plain(8, 12, seed=2) < 0)

    def inverted(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:  # not the negation of bytes
        return x * (~mask).to(x.dtype)

    def of_any_mask(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x.where(~mask.bool(), 0 * x)

    def of_booleans(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x.where(mask == 0, 0 * x)

    def problem(fn: Callable[..., Any], reference: Callable[..., Any]) -> str:
        return run_hard(Call(fn, args, reference, hard=only("dtypes")), EVERYTHING).problem

    assert "argument 1 (as uint8): output" in problem(inverted, of_any_mask)
    assert problem(inverted, of_booleans) == ""
    assert problem(of_booleans, of_any_mask) == ""


@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
def test_products_of_codes_whose_sum_float32_does_not_hold(wide: torch.dtype) -> None:
    codes = (torch.arange(-200, 200).view(4, 100) % 255 - 127).to(torch.int8)
    call = Call(
        lambda a, b: (a.to(wide) @ b.to(wide).T).int(),
        (codes, codes.flip(1)),
        lambda a, b: (a.long()[:, None] * b.long()).sum(-1).int(),
        hard=only("sizes"),
    )
    problem = run_hard(call, EVERYTHING).problem
    assert "dim 1 grown to 2049, all 127" in problem if wide is torch.float32 else problem == ""


def test_a_reference_that_takes_any_option_and_uses_none_accuses_nobody() -> None:
    call = Call(scaled, (plain(8, 12),), lambda x, **_: x * 1.0, hard=only("scalars"))
    assert run_hard(call, EVERYTHING).problem == ""


def test_sorted_values_stay_sorted_if_a_call_leaves_values_out() -> None:
    def narrowed(edges: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.searchsorted(edges, x).to(torch.uint8)

    def counted_below(edges: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (x[..., None] > edges).sum(-1).to(torch.uint8)

    args, hard = (plain(30).sort().values, plain(5, 7)), Hard(without=["values", "non-finite"], reason="sorted")
    call = Call(narrowed, args, counted_below, hard=hard)
    assert run_hard(call, EVERYTHING).problem == ""


def test_a_share_is_never_more_than_1() -> None:
    """The square root of a negative number is complex."""

    def step(x: torch.Tensor, beta: float = 0.9) -> torch.Tensor:
        return x.square() * (1 - beta) / (1 - beta**3)

    def by_a_root(x: torch.Tensor, beta: float = 0.9) -> torch.Tensor:
        return x.square() * ((1 - beta) ** 0.5 / (1 - beta**3) ** 0.5) ** 2

    assert run_hard(Call(by_a_root, (plain(8, 12),), step, hard=only("scalars")), EVERYTHING).problem == ""


@pytest.mark.parametrize("given", [{}, {"most": 0.5}, {"gains": torch.zeros(3)}])
def test_options_that_no_text_can_hold(given: dict[str, Any]) -> None:
    def clamped(x: torch.Tensor, most: float = math.inf, gains: torch.Tensor = LENGTHS) -> torch.Tensor:
        return x.clamp(max=most) + gains.sum()

    call = Call(clamped, (plain(8, 12),), clamped, kwargs=given, hard=only("scalars"))
    assert run_hard(call, EVERYTHING).problem == ""


def test_a_call_may_refuse_one_more_dimension() -> None:
    def refusing(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        if len(table.shape) == 3:
            raise NotImplementedError("one table for all")
        return x * table

    args = (plain(3, 6, 8), plain(6, 8, seed=1))
    assert ("table", 3) in code_of(refusing, CPU).ranks
    found = run_hard(Call(refusing, args, torch.mul, hard=only("thresholds")), EVERYTHING)
    assert (found.problem, found.left_out) == ("", {"the candidate raises": 1})


def helped(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return flat(table) * x


def flat(x: torch.Tensor) -> torch.Tensor:
    return x.flatten(0, 1) if x.ndim == 3 else x


def helped_by_name(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return flat(x) * table


def test_the_dimensions_of_another_tensor_of_the_same_name_are_not_asked_for() -> None:
    assert code_of(helped, CPU).ranks == ()
    assert code_of(helped_by_name, CPU).ranks == (("x", 3),)


@pytest.mark.parametrize("right", [True, False])
def test_a_batch_of_one_grows(right: bool) -> None:
    def shifted(x: torch.Tensor) -> torch.Tensor:
        return x - (x.amax(-1, keepdim=True) if right else x.amax())

    call = Call(shifted, (plain(1, 12),), lambda x: x - x.max(-1, keepdim=True).values, hard=only("sizes"))
    assert check(call).wrong == []
    assert ("argument 0 (dim 0 grown to 3)" in run_hard(call, EVERYTHING).problem) != right


def test_a_formula_that_does_not_overflow_is_right_where_its_reference_does() -> None:
    def naive(x: torch.Tensor) -> torch.Tensor:
        return x.exp().sum(-1).log()

    call = Call(lambda x: x.logsumexp(-1), (plain(8, 12),), naive, hard=only("values"))
    assert run_hard(call, EVERYTHING).problem == ""
    cut = Call(lambda x: (x * 2).clamp(max=1e30), (plain(8, 12),), lambda x: x * 2, hard=only("non-finite"))
    assert "unlike the oracle's" in run_hard(cut, EVERYTHING).problem


class _Attend(torch.autograd.Function):
    """Causal attention that keeps the logsumexp of its scores, as flash attention does."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = (q @ k.mT / 4).masked_fill(torch.ones(48, 48).triu(1) > 0, -torch.inf)
        lse = scores.logsumexp(-1, keepdim=True)
        out = (scores - lse).exp() @ v
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        p = (q @ k.mT / 4 - lse).exp().tril()
        ds = p * (g @ v.mT - (g * out).sum(-1, keepdim=True)) / 4
        return ds @ k, ds.mT @ q, p.mT @ g


def test_a_softmax_that_is_made_again_of_its_logsumexp_is_right_at_large_inputs() -> None:
    """A float32 holds scores of 500 to 3e-5, and so the softmax is off by as much where it is 1."""
    seen = torch.ones(48, 48).tril() > 0

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)

    for seed in range(0, 9, 3):
        inputs = tuple(normal(2, 2, 48, 16, seed=seed + at) for at in range(3))
        call = Call(_Attend.apply, inputs, reference, hard=only("gradients"), seed=seed)
        assert run_hard(call, EVERYTHING).problem == ""


def test_sizes_of_different_ranks_belong_together() -> None:
    """The T of (T,) and of (T, D)."""

    def rows_scaled(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        return x[: len(by)] * by[: len(x), None] if len(x) == len(by) else x * 0

    def reference(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        rows = min(len(x), len(by))
        return x[:rows] * by[:rows, None]

    for kind in ("equal sizes", "sizes"):
        call = Call(rows_scaled, (plain(24, 8), plain(24)), reference, hard=only(kind))
        assert run_hard(call, EVERYTHING).problem == ""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_is_left_where_terms_cancel_is_no_fault_in_16_bits(dtype: torch.dtype) -> None:
    """Attention's gradient of the keys, by the sum of the rounded output as flash attention has it."""

    def backward(x: torch.Tensor, out: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        s = x.float() @ x.float().T
        p = s.softmax(-1)
        dp = g.float() @ x.float().T
        ds = p * (dp - (out.float() * g.float()).sum(-1, keepdim=True))
        return (p.T @ g.float() + ds @ x.float() + ds.T @ x.float()).to(x.dtype)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return ((x.float() @ x.float().T).softmax(-1) @ x.float()).to(x.dtype)

    x = (plain(16, 32) * 0.3).to(dtype).requires_grad_()
    call = Call(differentiated(forward, backward), (x,), lambda x: (x @ x.T).softmax(-1) @ x)
    call = replace(call, tolerance=Tolerance(k=4.0, reason="sums in another order"), hard=only("gradients"))
    assert check(call).wrong == []
    assert run_hard(call, EVERYTHING).problem == ""


# -- what the message teaches ------------------------------------------------------------------------------------------


def message(fn: Callable[..., Any], reference: Callable[..., Any], x: torch.Tensor) -> str:
    return run_hard(Call(fn, (x,), reference, hard=only("sizes")), EVERYTHING).problem


def test_it_says_at_which_sizes_the_call_is_right() -> None:
    def up_to_a_power(x: torch.Tensor) -> torch.Tensor:
        return x[:, : 1 << int(math.log2(max(1, x.shape[1])))].sum(-1)

    told = message(up_to_a_power, lambda x: x.sum(-1), plain(8, 256))
    assert ": what is beyond the last power of two" in told
    assert "right at " in told


def test_it_asks_for_the_accumulator_where_only_16_bits_are_wrong() -> None:
    def in_its_own_dtype(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(x[:, 0])
        for column in x.unbind(1):
            total = total + column
        return total

    x = plain(4, 4).abs().to(torch.bfloat16)
    told = message(in_its_own_dtype, lambda x: x.sum(-1), x)
    assert "right in float32, wrong in bfloat16: the accumulator?" in told


# -- the code ----------------------------------------------------------------------------------------------------------


def compares(x: torch.Tensor, limit: int = 96) -> torch.Tensor:
    half = LIMIT // 2
    if x.shape[0] <= limit or half < len(x):
        return x + 1e-7
    return differentiated(lambda x: x.clamp(max=PROGRAMS * 2), silu_slope)(x)  # type: ignore[no-any-return]


def blocks(x: torch.Tensor) -> int:
    return min(-(-len(x) // 32), PROGRAMS)


class Launcher:
    """As custom operators are: an object that calls what it holds."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.backends = {"cpu": fn}

    def __call__(self, *args: Any) -> Any:
        return self.backends["cpu"](*args)


def test_numbers_of_the_code_are_those_that_it_compares_with_or_is_bounded_by() -> None:
    code = code_of(compares, CPU)
    assert {96, 350} <= set(code.thresholds)
    assert 2 not in code.thresholds  # of `//`
    assert 1e-7 in code.epsilons
    assert code_of(launched, CPU).thresholds == (LIMIT,)
    assert 48 * 32 in code_of(blocks, CPU).thresholds
    assert code_of(Launcher(launched), CPU).thresholds == (LIMIT,)
    assert code_of(torch.relu, CPU) == code_of(F.softmax, CPU)
    assert code_of(by_few_programs, CPU).name != code_of(in_turns, CPU).name


class LargestMade(TorchDispatchMode):
    """Attributes: most: the elements of the largest tensor that an operator returned."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.most = max(self.most, result.numel())
        return result


def test_a_size_beyond_a_threshold_is_grown_beside_few_of_the_others_from_the_first_step_on() -> None:
    call = Call(torch.relu, (plain(24, 40, 56),), torch.relu)
    found = sizes_of(call, kept_by(call)).thresholds([10_000])
    assert len(found) == 3
    for parts in found:
        with LargestMade() as made:
            derived = derived_call(call, Derivation(tuple(parts)))
        assert 10_001 in derived.args[0].shape
        assert made.most <= 4 * call.args[0].numel()


def test_an_option_that_stays_neutral_is_named_unless_it_is_varied() -> None:
    def without_decay(x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        return x - 0.5 * gradient

    args = CASES["scalars"][0].args
    call = Call(decayed, args, without_decay)
    assert unchecked(call) == {"decay of decayed": "0.0"}
    assert unchecked(replace(call, reference=decayed_in_turn)) == {"decay of decayed": ""}
    assert unchecked(replace(call, kwargs={"decay": 0.5})) == {"decay of decayed": ""}
    assert unchecked(replace(call, reference=decayed_in_turn, hard=None)) == {"decay of decayed": "0.0"}


def codes(x: torch.Tensor, least: float = 1e-12) -> torch.Tensor:
    return (x / (x.abs().amax(-1, keepdim=True) / 127).clamp(min=least)).round()


def test_nan_of_finite_inputs_is_wrong_however_the_reference_jumps_there() -> None:
    """Next to a row of zeros are codes of either sign, so that no value is the right one. NaN is none of them."""
    asked = Hard(without=[each for each in HARD_KINDS if each != "values"], reason="-")
    wrong = Call(lambda x: codes(x, least=0.0), (plain(8, 32),), codes, hard=asked)
    assert check(wrong).wrong == []
    assert (
        "elements are NaN or Inf of finite inputs, and the reference's are finite"
        in run_hard(wrong, EVERYTHING).problem
    )
    assert run_hard(replace(wrong, fn=lambda x: codes(x, least=1e-10)), EVERYTHING).problem == ""
