"""A mutant: the smallest change that re-creates a class of regression on one of our kernels, and what must be said."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

# Triton's interpreter on CPU tensors; torch operators and compiled layers on a CPU; cross-compiled without a GPU; the
# simulated GPU (clocks, sessions and queues that are under control); a GPU.
Place = Literal["I", "C", "X", "S", "G"]

Change = Callable[[Path], None]  # of the project in this folder


class NotApplied(Exception):
    """A mutant whose change found nothing to change, or was never run: an error of the corpus, not a miss."""


@dataclass(frozen=True)
class Edit:
    """Replace text that stands in the file exactly once.

    Attributes:
        file: below the project, e.g. `kernels/moe/router.py`, or `test_<suite>.py`.
    """

    file: str
    old: str
    new: str

    def __call__(self, root: Path) -> None:
        path = root / self.file
        text = path.read_text()
        found = text.count(self.old)
        if found != 1 or self.old == self.new:
            raise NotApplied(f"{self.file}: holds {self.old!r} {found} times; give text that stands there once")
        path.write_text(text.replace(self.old, self.new))


@dataclass(frozen=True)
class Append:
    """Add text to the end of a module: a function that wraps another one there, and takes its name."""

    file: str
    text: str

    def __call__(self, root: Path) -> None:
        path = root / self.file
        path.write_text(f"{path.read_text()}\n\n{self.text.strip()}\n")


@dataclass(frozen=True)
class Expect:
    """What a run has to say of a mutant: all four of word, metric, cases and text, and that no other case fails.

    Attributes:
        word: the verdict, e.g. "CHANGED". One that fails must be the only one that does. Empty for a run that judges
            nothing: then status and text alone count, the text of all that it printed.
        metric: pattern of the metric that names the cause, e.g. "*.spills"; of a wrong result the output's
            name, which is empty where no single comparison shows it.
        cases: patterns of the affected cases, e.g. "dispatch[hot]/*": all that fit are, no other is.
        says: text that the cases' verdicts have to hold, as a terminal shows them.
        also: patterns of metrics that the same cause moves as well, in the same cases.
        beside: patterns of cases that the same cause harms in other ways: they may fail, by any metric.
        others: patterns of other cases -> the word that has to be said of each of them besides.
        status: of the run, where the word does not tell.
        effect: the true ratio of times, which the interval that is told has to hold, stretched from 95 % to 99.9 %.
    """

    word: str
    metric: str = "*"
    cases: tuple[str, ...] = ("*",)
    says: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    others: Mapping[str, str] = field(default_factory=dict)
    status: int | None = None
    effect: float | None = None


@dataclass(frozen=True)
class Mutant:
    """One change, and what must be said of it wherever it can be shown.

    Attributes:
        name: unique; the test's id.
        classes: of shared/regressions.md, e.g. ("K05",).
        imitates: the public issue or pull request where it was seen, and what it did there.
        suite: a file of `suites/`: the cases it is judged on.
        apply: what is changed, in this order, before the run: the working tree differs in it from its base.
        shown: for each place what must be said there.
        arguments: of pytest, beside `--perfguard`.
        given: what is changed at the base already, and committed, as what the machine does on that day.
        open: why it is not caught today; the test then asserts that it is not.
    """

    name: str
    classes: tuple[str, ...]
    imitates: str
    suite: str
    apply: tuple[Change, ...]
    shown: Mapping[Place, Expect]
    arguments: tuple[str, ...] = ()
    given: tuple[Change, ...] = ()
    open: Mapping[Place, str] = field(default_factory=dict)


def planted(  # noqa: PLR0913  # the fields of a Mutant and of its Expect
    word: str,
    classes: str,
    name: str,
    imitates: str,
    suite: str,
    place: Place,
    changes: tuple[Change, ...],
    metric: str,
    *says: str,
    cases: tuple[str, ...] = ("*",),
    also: tuple[str, ...] = (),
    beside: tuple[str, ...] = (),
    arguments: tuple[str, ...] = (),
) -> Mutant:
    """One that is shown in one place; `metric`, of what is WRONG the output, and all that follows as in `Expect`."""
    expect = Expect(word, metric, cases=cases, says=says, also=also, beside=beside)
    return Mutant(name, tuple(classes.split()), imitates, suite, changes, {place: expect}, arguments)


wrong, changed = partial(planted, "WRONG"), partial(planted, "CHANGED")
