"""Other values of marked integers: repeated or unused indices, and groups of every size."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import torch

from perfguard.check.hard_inputs import Mark

REPEATS = (33, 65, 129)  # one more than tables of 32, 64 and 128 entries hold

_Change = Callable[[torch.Tensor, list[int]], torch.Tensor]


def _replaced(tensor: torch.Tensor, numbers: list[int]) -> torch.Tensor:
    return torch.where(tensor == numbers[0], numbers[1], tensor)


def _repeated(tensor: torch.Tensor, numbers: list[int]) -> torch.Tensor:
    made = tensor.clone(memory_format=torch.contiguous_format)
    made.view(-1)[: numbers[0]] = numbers[1]
    return made


def _counted(tensor: torch.Tensor, numbers: list[int]) -> torch.Tensor:
    return (torch.arange(tensor.numel(), device=tensor.device) % numbers[0]).to(tensor.dtype).view(tensor.shape)


def _sorted(tensor: torch.Tensor, _: list[int], descending: bool = False) -> torch.Tensor:
    return tensor.reshape(-1).sort(descending=descending).values.view(tensor.shape)


def _in_one(ends: torch.Tensor, numbers: list[int]) -> torch.Tensor:
    return torch.where(torch.arange(len(ends), device=ends.device) < numbers[0], 0, numbers[1]).to(ends.dtype)


def _by_steps(ends: torch.Tensor, numbers: list[int]) -> torch.Tensor:
    steps = numbers[0] * torch.arange(1, len(ends) + 1, device=ends.device)
    made = steps.clamp(max=numbers[1])
    made[-1:] = made[-1:].maximum(torch.tensor(numbers[2], device=ends.device))
    return made.to(ends.dtype)


def _every_second(ends: torch.Tensor, _: list[int]) -> torch.Tensor:
    made = ends.clone()
    made[0] = 0
    made[2::2] = ends[1:-1:2]
    made[-1] = ends[-1]
    return made


def _modulo(tensor: torch.Tensor, numbers: list[int]) -> torch.Tensor:
    return torch.where(tensor >= 0, tensor % numbers[0], tensor)  # what stands for no index stays


def _last_end(ends: torch.Tensor, numbers: list[int]) -> torch.Tensor:
    made = ends.clone(memory_format=torch.contiguous_format)
    made[-1:] = numbers[0]
    return made


_KINDS: list[tuple[str, _Change]] = [
    (r"all (-?\d+)", lambda tensor, numbers: torch.full_like(tensor, numbers[0])),
    (r"sorted", _sorted),
    (r"sorted downwards", lambda tensor, numbers: _sorted(tensor, numbers, True)),
    (r"counting below (\d+)", _counted),
    (r"first (\d+) are (\d+)", _repeated),
    (r"(\d+) replaced by (-?\d+)", _replaced),
    (r"as int32", lambda tensor, _: tensor.to(torch.int32)),
    (r"as int64", lambda tensor, _: tensor.to(torch.int64)),
    (r"groups before (\d+) empty and ends (\d+) from there", _in_one),
    (r"groups of (\d+) up to (\d+) and the last to (\d+)", _by_steps),
    (r"every second group empty", _every_second),
    (r"modulo (\d+)", _modulo),
    (r"ends at most (\d+)", lambda tensor, numbers: tensor.clamp(max=numbers[0])),
    (r"last end (\d+)", _last_end),
]
_LIMITS = re.compile(r"(?:modulo|ends at most) (\d+)")  # texts that leave another limit


def with_integers(tensor: torch.Tensor, text: str) -> torch.Tensor | None:
    """The tensor with other integers, by the text of a derivation; None if the text is not a step of integers."""
    for pattern, change in _KINDS:
        found = re.fullmatch(pattern, text)
        if found and not tensor.is_floating_point():
            return change(tensor.detach(), list(map(int, found.groups())))
    return None


def following(tensor: torch.Tensor, mark: Mark, size: int, target: int) -> list[str] | None:
    """The steps of a marked tensor where all dimensions of `size` are cut to `target`, its own ones among them, so that
    its integers stay valid; None if none would be."""
    own = [f"dim {dim} cut to {target}" for dim, length in enumerate(tensor.shape) if length == size]
    if tensor.numel() == 0 or (own and target == 0 and (mark.kind == "ids" or mark.limit)):
        return own  # no integers are left
    if mark.kind == "ids":
        if mark.limit != size:
            return own
        if target == 0:  # there is nothing that could be meant
            return None if mark.ignored is None else [f"all {mark.ignored}", *own]
        return [f"modulo {target}", *own]
    given = tensor.tolist()
    last, step = given[-1], math.gcd(*given) or 1
    before, after = [], []
    if (mark.limit or last) == size:
        last = min(last, target // step * step)
        before = [f"ends at most {last}"]
    if not mark.limit:  # then the last end is that of the rows
        if (last != target and before) or (own and target == 0):
            return None
        after = [f"last end {last}"] if own else []
    return [*before, *own, *after]


def limit_after(text: str, limit: int) -> int:
    """The limit of a mark whose tensor was changed by a text."""
    for number in _LIMITS.findall(text):
        limit = int(number) if limit else 0
    return limit


def integers_of(tensor: torch.Tensor, mark: Mark) -> list[str]:
    """Texts for other values of a marked tensor; those most likely to find errors first."""
    if tensor.numel() == 0:
        return []
    if mark.kind == "offsets":
        return _ends(tensor, mark)
    last = mark.limit - 1
    found = [f"all {last}", f"counting below {mark.limit}", "all 0"]
    found += [f"first {number} are {last}" for number in REPEATS if number < tensor.numel()]
    if last > 0:
        found += [f"{last} replaced by 0", f"0 replaced by {last}"]
    if mark.ignored is not None:
        found += [f"all {mark.ignored}", f"{last} replaced by {mark.ignored}"]
    return [*found, "sorted", "sorted downwards", _other_width(tensor)]


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
