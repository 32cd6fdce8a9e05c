"""What runs beside a given call takes turns by kind, within one budget of processor time.

A run begins with what failed in the last one, and goes on where each kind stopped then.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from perfguard.model.call import CONFIGURATIONS

# Inputs of one case that failed in the last run. They are tried first, whatever the budget, so that a fault stays one
# until it is mended; each costs a turn and a question to the base in every run.
MOST_KNOWN = 3
# Seconds within which the kinds of a cheap call begin that have had no turn with its code. On a CPU all turns of a case
# take at most 1.4 s (134 calls of the guarded quantisers and operators). On a GPU with cold caches each may compile
# kernels anew: the next run, whose caches are warm, begins with the kinds that had no turn.
FIRST_SECONDS = 1.5

Item = TypeVar("Item")


class Reached(Struct, frozen=True, omit_defaults=True):
    """How far the kinds of one case came in earlier runs.

    Attributes:
        plan: hash of what takes turns; another plan starts anew.
        done: by kind, number of turns so far. Beyond its number of inputs a kind begins again.
        failed: kind and number of what failed in the last run.
        code: hash of the candidate's.
    """

    plan: str = ""
    done: dict[str, int] = {}
    failed: list[tuple[str, int]] = []
    code: str = ""


@dataclass(frozen=True)
class Budget:
    """Processor time for everything beside one given call.

    Attributes:
        seconds: after which nothing starts that need not.
        cheap: whether the given call is cheap enough that new kinds begin within `FIRST_SECONDS`.
        tried: kinds that have had a turn with this code, in an earlier run or with other inputs. They are not new.
        clock: of this thread and of compilers that it started, so that other processes do not decide what runs.
        agreed: whether a flag is set on any of the ranks that make the call.
    """

    seconds: float
    cheap: bool = True
    tried: Set[str] = frozenset()
    clock: Callable[[], float] = lambda: time.thread_time() + sum(os.times()[2:4])
    agreed: Callable[[bool], bool] = bool


@dataclass(frozen=True)
class Tried(Generic[Item]):
    """The outcome of one turn. `instead`: kinds and items that stand for one that could not be judged as a whole."""

    failed: bool = False
    instead: Sequence[tuple[str, Item]] = ()


@dataclass(frozen=True)
class _Piece(Generic[Item]):
    """An item, or a part of the one at the place `of` of the plan."""

    kind: str
    item: Item
    of: tuple[str, int]


class Turns(Generic[Item]):
    """The turns of one case in one run.

    Args:
        plan: what is tried, by kind, in order. Kinds that are equally far take turns in the order of their names here.
        reached: in earlier runs of the same plan.
    """

    def __init__(self, plan: Mapping[str, Sequence[Item]], reached: Reached, budget: Budget) -> None:
        self._plan = {kind: items for kind, items in plan.items() if items}
        self._reached, self._budget = reached, budget
        known = [each for each in reached.failed if 0 <= each[1] < len(self._plan.get(each[0], ()))]
        self._known = deque(_Piece(kind, self._plan[kind][number], (kind, number)) for kind, number in known)
        self._queues = {
            kind: deque(
                _Piece(kind, self._plan[kind][n], (kind, n)) for n in self._order(kind) if (kind, n) not in known
            )
            for kind in sorted(self._plan, key=lambda kind: reached.done.get(kind, 0))
        }
        self._open = Counter(piece.of for queue in (*self._queues.values(), self._known) for piece in queue)
        self._took: dict[str, list[float]] = {}
        self._failed: list[tuple[str, int]] = []
        self._kept: set[tuple[str, int]] = set()  # failed, and not remembered: its kind does not get behind it
        self._ended = False

    def _order(self, kind: str) -> list[int]:
        number = len(self._plan[kind])
        start = self._reached.done.get(kind, 0) % number
        return [*range(start, number), *range(start)]

    @property
    def waiting(self) -> dict[str, int]:
        """By kind, number of those that had no turn."""
        return {kind: len(queue) for kind, queue in self._queues.items() if queue}

    @property
    def untried(self) -> list[str]:
        """Kinds of which nothing was tried, in this run or in an earlier one."""
        return [
            kind
            for kind, queue in self._queues.items()
            if len(queue) == len(self._plan[kind]) and not self._reached.done.get(kind)
        ]

    def take(self, attempt: Callable[[str, Item], Tried[Item]]) -> None:
        """Let `attempt` try one item after the other.

        What failed in the last run comes first. Then each kind has one before any has a second one. In this first round
        one starts as long as the budget is not over, or within `FIRST_SECONDS` if the call is cheap and the kind new,
        and at least one does; later ones, if they are likely to end within the budget. The first new failure ends the
        turns, but for configurations.
        """
        began = self._budget.clock()
        while self._known:
            piece = self._known.popleft()
            tried = self._try(piece, attempt)
            self._known.extendleft(_Piece(piece.kind, item, piece.of) for _, item in reversed(tried.instead))
        started = True
        while started:
            started = False
            for kind, queue in self._queues.items():
                if queue and not (self._ended and kind != CONFIGURATIONS) and self._may_start(kind, began):
                    started = True
                    self._turn(queue.popleft(), attempt)

    def _may_start(self, kind: str, began: float) -> bool:
        took, budget = self._took.get(kind), self._budget
        gone = budget.clock() - began
        if took is None:
            is_new = budget.cheap and kind not in budget.tried
            may = gone < max(budget.seconds, FIRST_SECONDS * is_new) or not self._took
        else:  # it, and as much for the given inputs, which come last
            may = gone + 2 * sum(took) / len(took) <= budget.seconds
        return not budget.agreed(not may)

    def _turn(self, piece: _Piece[Item], attempt: Callable[[str, Item], Tried[Item]]) -> None:
        began = self._budget.clock()
        tried = self._try(piece, attempt)
        self._took.setdefault(piece.kind, []).append(self._budget.clock() - began)
        for kind, item in reversed(tried.instead):
            own = kind if kind in self._queues else piece.kind
            self._queues[own].appendleft(_Piece(own, item, piece.of))

    def _try(self, piece: _Piece[Item], attempt: Callable[[str, Item], Tried[Item]]) -> Tried[Item]:
        tried = attempt(piece.kind, piece.item)
        self._open[piece.of] += len(tried.instead) - 1
        known = piece.of in self._reached.failed
        if tried.failed and piece.of not in self._failed:
            if known or len(self._failed) < MOST_KNOWN:
                self._failed.append(piece.of)
            else:
                self._kept.add(piece.of)
        self._ended = self._ended or (tried.failed and not known and piece.kind != CONFIGURATIONS)
        return tried

    @property
    def reached(self) -> Reached:
        """How far the kinds have come."""
        done = {kind: self._reached.done.get(kind, 0) + self._finished(kind) for kind in self._plan}
        return replace(self._reached, done=done, failed=self._failed)

    def _finished(self, kind: str) -> int:
        """Number of turns that have ended, up to the first that has not."""
        order = self._order(kind)
        ended = (self._open[kind, number] <= 0 and (kind, number) not in self._kept for number in order)
        return next((at for at, each in enumerate(ended) if not each), len(order))


def hash_of(*parts: object) -> str:
    """A short hash of what a plan is of."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
