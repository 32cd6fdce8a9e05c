"""Results beside tensors: plain values and what holds them are compared, a user's class is not asked."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy
import pytest
import torch

from perfguard.check.correctness import check
from perfguard.check.other_results import OtherResults
from perfguard.model.call import Call


def _asked(*_: object) -> NoReturn:
    raise AssertionError("a user's object was asked")


class Silent:
    __bool__ = __len__ = __eq__ = __ne__ = __hash__ = __iter__ = _asked  # type: ignore[assignment]


class Text(str):
    __slots__ = ()
    __bool__ = __len__ = __eq__ = __ne__ = __hash__ = _asked  # type: ignore[assignment]


class Path(enum.Enum):
    FAST = 1
    SLOW = 2


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass(eq=False)
class Held(Silent):
    value: Any


def held_by_itself() -> Held:
    made = Held(None)
    made.value = [made]
    return made


@pytest.mark.parametrize(
    ("got", "want", "alike"),
    [
        (3, 3, True),
        (3, 4, False),
        (1, 1.0, True),
        (2**70, 2**70, True),
        (True, False, False),
        (1.0, 1.0 + 1e-7, True),
        (1.0, 1.001, False),
        (float("nan"), float("nan"), True),
        (numpy.float64(2.0), 2.0, True),
        ("a", "b", False),
        (Text("a"), Text("a"), True),
        (Text("a"), Text("b"), False),
        (None, 0, False),
        (Path.FAST, Path.FAST, True),
        (Path.FAST, Path.SLOW, False),
        (torch.float32, torch.float64, False),
        (torch.device("cpu"), torch.device("cpu"), True),
        (torch.Size([2, 3]), torch.Size([2, 4]), False),
        (Pair(1, [2]), Pair(1, [2]), True),
        (Pair(1, [2]), (1, [2]), False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1, "b": 2}, {"b": 1, "a": 2}, False),
        (Held(1), Held(1), True),
        (Held(1), Held(2), False),
        (Held(torch.ones(3)), Held(torch.zeros(3)), True),  # a tensor to compare is returned as one
        (Held(torch.ones(3)), Held(torch.ones(4)), False),
        (held_by_itself(), held_by_itself(), True),
        (Silent(), Silent(), True),
        (Silent(), object(), False),
        (numpy.ones(3), numpy.ones(3), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_alike(got: object, want: object, alike: bool) -> None:
    assert OtherResults().alike([got], [want]) is alike


def test_what_is_not_compared_is_said() -> None:
    checked = check(
        Call(lambda x: (x, Silent(), numpy.ones(2)), (torch.ones(2),), lambda x: (x, Silent(), numpy.ones(2)))
    )
    assert not checked.wrong
    assert [note.partition(" holds ")[0] for note in checked.notes] == [
        "outputs: what a Silent",
        "outputs: what a ndarray",
    ]
