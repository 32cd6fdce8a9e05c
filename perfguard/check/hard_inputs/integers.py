"""Other values of marked integers: repeated or unused indices, and groups of every size."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch

from perfguard.check.hard_inputs import Mark, mark_of
from perfguard.check.hard_inputs.values import resized

RESIZED = re.compile(r"dim (\d+) (?:cut|grown) to (\d+)")
REPEATS = (33, 65, 129)  # one more than tables of 32, 64 and 128 entries hold


def _places(tensor: torch.Tensor) -> torch.Tensor:
    """0, 1, 2 … in the shape of the tensor."""
    return torch.arange(tensor.numel(), device=tensor.device).view(tensor.shape)


def _sorted(tensor: torch.Tensor, descending: bool = False) -> torch.Tensor:
    return tensor.reshape(-1).sort(descending=descending).values.view(tensor.shape)


def _by_steps(ends: torch.Tensor, step: int, most: int, last: int) -> torch.Tensor:
    made = (step * (_places(ends) + 1)).clamp(max=most)
    made[-1:] = made[-1:].clamp(min=last)
    return made.to(ends.dtype)


def _every_second(ends: torch.Tensor) -> torch.Tensor:
    made = ends.clone()
    made[0] = 0
    made[2::2] = ends[1:-1:2]
    made[-1] = ends[-1]
    return made


def _in_every_second(ends: torch.Tensor, step: int, most: int, last: int) -> torch.Tensor:
    """Groups with rows and without, in turn. The last group gets the remaining rows."""
    made = (step * (_places(ends) // 2 + 1)).clamp(max=most)
    made[-1:] = last
    return made.to(ends.dtype)


#: Pattern of a step -> the function of the tensor and of the numbers in the pattern that makes the new tensor.
_KINDS: list[tuple[str, Callable[..., torch.Tensor]]] = [
    (r"all (-?\d+)", torch.full_like),
    ("reversed", lambda tensor: tensor.flip(0)),
    ("sorted", _sorted),
    ("sorted downwards", lambda tensor: _sorted(tensor, descending=True)),
    (r"counting below (\d+)", lambda tensor, below: (_places(tensor) % below).to(tensor.dtype)),
    (r"first (\d+) are (\d+)", lambda tensor, number, value: torch.where(_places(tensor) < number, value, tensor)),
    (r"every third (-?\d+)", lambda tensor, value: torch.where(_places(tensor) % 3 == 1, value, tensor)),
    (r"(-?\d+) replaced by (-?\d+)", lambda tensor, old, new: torch.where(tensor == old, new, tensor)),
    ("every third inverted", lambda tensor: torch.where(_places(tensor) % 3 == 1, tensor.logical_not(), tensor)),
    ("as uint8", lambda tensor: tensor.to(torch.uint8)),
    ("as int32", lambda tensor: tensor.to(torch.int32)),
    ("as int64", lambda tensor: tensor.to(torch.int64)),
    (
        r"groups before (\d+) empty and ends (\d+) from there",
        lambda ends, first, end: torch.where(_places(ends) < first, 0, end).to(ends.dtype),
    ),
    (r"groups of (\d+) up to (\d+) and the last to (\d+)", _by_steps),
    ("every second group empty", _every_second),
    (r"every second group with (\d+) up to (\d+) and the last to (\d+)", _in_every_second),
    (
        r"places (\d+) to (\d+) are (-?\d+)",
        lambda tensor, first, last, value: torch.where(
            (_places(tensor) >= first) & (_places(tensor) <= last), value, tensor
        ),
    ),
    # A negative number that stands for no index is unchanged.
    (r"modulo (\d+)", lambda tensor, size: torch.where(tensor >= 0, tensor % size, tensor)),
    (r"ends at most (\d+)", lambda ends, most: ends.clamp(max=most)),
    (r"last end (\d+)", lambda ends, end: torch.where(_places(ends) == len(ends) - 1, end, ends)),
]
_LIMITS = re.compile(r"(?:modulo|ends at most) (\d+)")  # Steps that change the limit.

_NUMBERS = re.compile(r"numbers (-?\d+(?: -?\d+)*)")
_MOST_PAGES = 2  # A length becomes a multiple of at most this many sizes.
_MOST_NUMBERS = 16  # that a step names one by one

_OF_ROWS = re.compile(r"rows of groups that end at (\d+(?: \d+)*) and (-?\d+) behind")


def _of_rows(ids: torch.Tensor, ends: Sequence[int], behind: int) -> torch.Tensor:
    """The group of each row; `behind`: of rows behind the last end."""
    place = _places(ids)
    groups = torch.searchsorted(torch.tensor(ends, device=ids.device), place, right=True)
    return torch.where(place < ends[-1], groups, behind).to(ids.dtype)


def agreeing(leaves: Sequence[Any], steps: Mapping[int, str]) -> dict[int, str]:
    """The steps, and those of the ids that belong to changed ends (`perfguard.offsets(…, ids=…)`)."""
    found = dict(steps)
    marks = {place: mark for place, leaf in enumerate(leaves) if (mark := mark_of(leaf)) is not None and mark.pair}
    for place, mark in marks.items():
        ends = next(
            (at for at in steps if at in marks and marks[at].kind == "offsets" and marks[at].pair == mark.pair), None
        )
        if mark.kind == "offsets" or ends is None:
            continue
        made = leaves[ends]
        for step in steps[ends].split(", "):
            made = _stepped(made, step)
        last = made.tolist() if made is not None else []
        if last:
            behind = len(last) - 1 if mark.ignored is None else mark.ignored
            text = f"rows of groups that end at {' '.join(map(str, last))} and {behind} behind"
            found[place] = ", ".join(filter(None, [steps.get(place, ""), text]))
    return found


def _stepped(ends: torch.Tensor | None, step: str) -> torch.Tensor | None:
    size = RESIZED.fullmatch(step)
    if ends is None or size is None:
        return None if ends is None else with_integers(ends, step)
    return resized(ends, *map(int, size.groups()))


def with_integers(tensor: torch.Tensor, text: str) -> torch.Tensor | None:
    """The tensor with other integers, by the text of a derivation; None if the text is not a step of integers."""
    rows = _OF_ROWS.fullmatch(text)
    if rows and not tensor.is_floating_point():
        return _of_rows(tensor.detach(), [int(end) for end in rows[1].split()], int(rows[2]))
    numbers = _NUMBERS.fullmatch(text)
    if numbers and not tensor.is_floating_point():
        return tensor.new_tensor([int(each) for each in numbers[1].split()]).view(tensor.shape)
    for pattern, change in _KINDS:
        found = re.fullmatch(pattern, text)
        if found and not tensor.is_floating_point():
            return change(tensor.detach(), *map(int, found.groups()))
    return None


def following(tensor: torch.Tensor, mark: Mark, size: int, target: int, own: Sequence[str]) -> list[str] | None:
    """The steps of a marked tensor where all dimensions of `size` are cut or grown to `target`, so that its integers
    are valid there; None if none would be. `own`: the steps that change its own dimensions."""
    if tensor.numel() == 0 or (own and target == 0 and (mark.kind == "ids" or mark.limit)):
        return [*own]  # No integers are left.
    if mark.kind == "of rows":
        return [*own]  # `agreeing` adds the other steps.
    if mark.kind == "ids":
        if mark.limit != size:
            return [*own]
        if target == 0:  # No index is valid.
            return None if mark.ignored is None else [f"all {mark.ignored}", *own]
        return [f"modulo {target}", *own]
    given = tensor.tolist()
    last, step = given[-1], math.gcd(*given) or 1
    before, after = [], []
    if (mark.limit or last) == size:
        reached = target // step * step
        last = reached if not mark.limit else min(last, reached)
        before = [f"ends at most {last if target < size else target}"]
    if not mark.limit:  # The last end is then the number of rows.
        if (last != target and before) or (own and target == 0):
            return None
        after = [f"last end {last}"] if own or target > size else []
    if own and target > size:  # The added groups have rows as well.
        share = max(last // (target // 2 + 1) // step, 1) * step
        after = [f"every second group with {share} up to {last} and the last to {last}"]
    return [*before, *own, *after]


def limit_after(text: str, limit: int) -> int:
    """The limit of a mark whose tensor was changed by a text."""
    for number in _LIMITS.findall(text):
        limit = int(number) if limit else 0
    return limit


def integers_of(tensor: torch.Tensor, mark: Mark) -> list[str]:
    """Texts for other values of a marked tensor; those most likely to find errors first."""
    if tensor.numel() == 0 or mark.kind == "of rows":
        return []
    if mark.kind == "offsets":
        return _ends(tensor, mark)
    last = mark.limit - 1
    found = [f"all {last}", f"counting below {mark.limit}", "all 0"]
    found += [f"first {number} are {last}" for number in REPEATS if number < tensor.numel()]
    if last > 0:
        found += [f"{last} replaced by 0", f"0 replaced by {last}"]
    if mark.ignored is not None:
        found += [f"every third {mark.ignored}", f"all {mark.ignored}", f"{last} replaced by {mark.ignored}"]
    return [*found, "sorted", "sorted downwards", _other_width(tensor)]


def runs_of(tensor: torch.Tensor, mark: Mark, blocks: Sequence[int]) -> list[str]:
    """Texts for runs of ids that stand for none: all but the first and the last, all but the last, blocks, and all.

    Args:
        blocks: sizes of blocks, of which one is left without an id between others that have some.
    """
    last = tensor.numel() - 1
    if mark.ignored is None or mark.kind != "ids" or last < 1:
        return []
    within = [(block, 2 * block - 1) for block in sorted(set(blocks), reverse=True) if 2 * block <= last]
    runs = [(1, last - 1), (0, last - 1), *within] if last > 1 else [(0, 0)]
    return [*(f"places {first} to {end} are {mark.ignored}" for first, end in runs), f"all {mark.ignored}"]


def _ends(tensor: torch.Tensor, mark: Mark) -> list[str]:
    """Texts for other ends. They keep the common divisor of the given ones, which the call may require."""
    given, groups = tensor.tolist(), tensor.numel()
    last = given[-1]
    step = math.gcd(*given) or 1
    found = [f"groups before {groups - 1} empty and ends {last} from there"]
    if groups > 1:
        found += [f"groups before 0 empty and ends {last} from there", "every second group empty"]
    found += [f"groups of {step} up to {last} and the last to {last}"]
    if mark.limit:
        fewer = (mark.limit - 1) // step * step
        found = [f"groups before {groups // 2} empty and ends {fewer} from there", *found]
        found += ["all 0", f"groups before 0 empty and ends {mark.limit // step * step} from there"]
        found += [f"groups of {step} up to {mark.limit // step * step} and the last to 0"]
    return [*found, _other_width(tensor)]


def _other_width(tensor: torch.Tensor) -> str:
    return "as int32" if tensor.dtype is torch.int64 else "as int64"


def twins_of(leaves: Sequence[Any], place: int) -> list[int]:
    """The places of tensors of integers or booleans that equal the one at `place`, such as the ends of queries and of
    keys."""
    leaf = leaves[place]

    def is_twin(each: Any) -> bool:
        if not isinstance(each, torch.Tensor) or each is leaf or leaf.is_floating_point() or leaf.is_complex():
            return each is leaf
        return (each.dtype, each.device) == (leaf.dtype, leaf.device) and bool(each.equal(leaf))

    return [at for at, each in enumerate(leaves) if is_twin(each)]


def unmarked(leaves: Sequence[Any], place: int) -> list[str]:
    """Steps for the tensor at `place`, if no mark explains it. The first is the evidence that the others are valid.

    A vector of lengths, classes or places: reversed, and with a smaller number in place of the largest: by one, and a
    multiple of each small size, as a length that fills its last page is. Counts of rows, and ends: with rows of the
    largest group in the smallest, and with the smallest group empty. Booleans that are all alike: every third inverted,
    for which there is no evidence but the reference's result. Counts of rows sum to a size of some tensor, and ends are
    ascending up to one.
    """
    integers: torch.Tensor = leaves[place]
    if integers.dtype is torch.bool and integers.numel() > 1 and bool((integers == integers.reshape(-1)[0]).all()):
        return ["", "every third inverted"]
    is_wide = integers.dtype in (torch.int32, torch.int64)
    if not is_wide or integers.ndim != 1 or integers.numel() < 2 or mark_of(integers) is not None:
        return []
    sizes = {size for leaf in leaves if isinstance(leaf, torch.Tensor) for size in leaf.shape}
    least, most, total = int(integers.min()), int(integers.max()), int(integers.sum())
    ascending = bool((integers[1:] >= integers[:-1]).all())
    if least >= 0 and integers.numel() <= _MOST_NUMBERS and (most if ascending else total) in sizes:
        return _other_groups(integers.tolist(), ends=ascending)
    known = set(integers.tolist())
    repeats = len(known) < integers.numel()
    if least < 0 or most < 2 or total in sizes or (not repeats and most - 1 in known) or (ascending and repeats):
        return []
    pages = [most // size * size for size in sorted(sizes) if 1 < size < most]
    # Places that are all different stay so: of two that are equal nobody says which is written last.
    fewer = [each for each in pages if each not in (most, most - 1) and (repeats or each not in known)][:_MOST_PAGES]
    return ["reversed", *(f"{most} replaced by {each}" for each in dict.fromkeys([most - 1, *fewer]))]


def are_ids(integers: torch.Tensor) -> bool:
    """Whether a vector without a mark may hold ids: not negative, in no order, and some several times."""
    if integers.dtype not in (torch.int32, torch.int64) or mark_of(integers) is not None:
        return False
    return bool((integers >= 0).all() & (integers.diff() < 0).any()) and len({*integers.tolist()}) < len(integers)


def _other_groups(given: list[int], *, ends: bool) -> list[str]:
    """Steps for counts or running ends of groups. None has more rows than the largest has now, which the call may be
    told elsewhere, and counts keep their common divisor, which it may require."""
    start = given[0] if ends and given[0] == 0 else None  # a leading 0 is no group
    counts = [b - a for a, b in pairwise([0, *given][start is not None :])] if ends else given
    step, order = math.gcd(*counts), sorted(range(len(counts)), key=lambda at: counts[at])
    if len(counts) < 2 or 0 in counts or counts[order[0]] + counts[order[1]] > counts[order[-1]]:
        return []
    moves = [(order[-1], order[0], step), (order[0], order[1], counts[order[0]])]
    found = []
    for giver, taker, rows in moves:
        made = [*counts]
        made[giver], made[taker] = made[giver] - rows, made[taker] + rows
        numbers = [*accumulate(made, initial=start)] if ends else made
        found.append(f"numbers {' '.join(map(str, numbers))}")
    return found
