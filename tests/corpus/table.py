"""The page of all mutants: what perfguard says of each, and what others say of the same run."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfguard.records import Word
from tests.corpus.mutant import Mutant, Place
from tests.corpus.rivals import NAMES, Seen
from tests.corpus.weighing import Grade, Weighed

COMMAND = "python -m tests.corpus --table docs/corpus.md"
PLACES = {
    "I": "Triton's interpreter",
    "C": "torch operators on a CPU",
    "X": "cross-compiled",
    "S": "simulated GPU",
    "G": "GPU",
}
HEAD = f"""\
# The regression corpus

For whoever asks what perfguard catches: classes of regressions that happened in public, each planted in our own kernels
by the smallest change that makes it, and what was said of it; then events that look like one and are none. The mutants
stand in `tests/corpus/`; `pytest tests/corpus` judges them again. This page is written by

```
{COMMAND}
```

**Caught** means all at once: the right word, by the metric that names the cause, on the affected cases and no others,
in words to act on. **Half**: the affected cases fail, but nothing says why. A rival that compares times can be half at
most. **False alarm**: a case fails to which nothing was done. Rivals see the same mutants, each in its usual set-up:
`assert_close` of outputs and gradients at rtol 0.016 and atol 0.01; pytest-benchmark with
`--benchmark-compare-fail=median:5%` against a run of the clean tree; medians of triton's `do_bench` with a gate of 5 %,
on a GPU only. On the simulated GPU they are not asked: they would time the simulation.
"""

# What has no mutant, and why; classes of wrong results have a file of their own.
MISSING = (
    "K15, slower than the naive way: a case cannot name a rival that is timed beside it; against its own baseline a "
    "launch for each group is K05's finding.",
    "K16 by `perfguard compare` on a CPU: 4 % lie below what its times can tell; `tests/flows/test_compare.py` holds "
    "the words.",
    "Equally fast configurations that swap: there is no word for another configuration.",
    "A code of fp8 that flips at a tie: `tests/test_numerics.py` holds that ties are counted and pass.",
    "Another host of the same kind, a reboot, power caps, two modes of a machine: they take other machines.",
    "Two branches that add cases to one file: `tests/baselines/test_merging.py`. Lanes without a report: "
    "`tests/test_reporting.py`. A device that faults, memory that runs out, results from a cache: "
    "`tests/flows/test_faults.py`.",
)


@dataclass(frozen=True)
class Row:
    """One mutant in one place, judged by all."""

    mutant: Mutant
    place: Place
    weighed: Weighed
    seen: Seen | None

    @property
    def event(self) -> bool:
        """Whether nothing may fail."""
        word = self.mutant.shown[self.place].word
        return bool(word) and not Word(word).fails

    @property
    def hygiene(self) -> bool:
        return "K38" in self.mutant.classes

    def rivals(self) -> list[str]:
        """A cell for each rival."""
        if self.seen is None:
            return ["not asked"] * len(NAMES)
        wrong = self.mutant.shown[self.place].word == Word.WRONG
        best = [Grade.CAUGHT if wrong else Grade.HALF, Grade.HALF, Grade.HALF]
        return [self._rival(fails, grade) for fails, grade in zip(self.seen.of(), best, strict=True)]

    def _rival(self, fails: Mapping[str, str] | None, best: Grade) -> str:
        if fails is None:
            return "not run"
        others = sorted(fails) if self.event else sorted(set(fails) - self.weighed.tests)
        hit = [] if self.event else sorted(set(fails) & self.weighed.tests)
        cells = [f"{best} ({_short(fails[hit[0]])})"] if hit else [] if others or self.event else [str(Grade.MISSED)]
        cells += [f"{Grade.FALSE} ({len(others)}: {_short(fails[others[0]])})"] if others else []
        return "; ".join(cells) or "quiet"


def page(rows: Sequence[Row], waiting: Sequence[tuple[Mutant, Place]], seconds: float, versions: str) -> str:
    """Markdown. `waiting`: what could not be shown here."""
    planted = [row for row in rows if not row.event and not row.hygiene]
    guard = [row for row in rows if row.hygiene]
    events = [row for row in rows if row.event and not row.hygiene]
    parts = [HEAD, _summary(planted, events, seconds, versions)]
    parts += ["## Planted\n", _table(planted)]
    parts += ["## The guard itself\n", "K38. No rival has a word for these.\n", _table(guard, rivals=False)]
    parts += ["## Events that must stay quiet\n", _table(events)]
    parts += _open(rows)
    parts += ["## Not planted yet\n", "\n".join(f"- {each}" for each in MISSING) + "\n"]
    if waiting:
        lines = [f"- {', '.join(mutant.classes)}: {mutant.name} ({PLACES[place]})" for mutant, place in waiting]
        parts += ["## Not shown on this machine\n", "\n".join(lines) + "\n"]
    return "\n".join(parts)


def _summary(planted: Sequence[Row], events: Sequence[Row], seconds: float, versions: str) -> str:
    def counted(rows: Sequence[Row], cells: Sequence[str]) -> str:
        found = Counter(cell.partition(" (")[0] if not cell.startswith("false") else "false alarm" for cell in cells)
        return ", ".join(f"{count} {name}" for name, count in sorted(found.items())) or f"0 of {len(rows)}"

    lines = [f"{versions}, {platform.machine()}; {seconds / 60:.0f} minutes, rivals included.\n"]
    lines += ["| | planted | events |", "|---|---|---|"]
    own = [counted(planted, [row.weighed.grade for row in planted])]
    own += [counted(events, ["quiet" if row.weighed.grade is Grade.CAUGHT else row.weighed.grade for row in events])]
    lines.append(f"| perfguard | {own[0]} | {own[1]} |")
    for number, name in enumerate(NAMES):
        cells = [counted(rows, [row.rivals()[number] for row in rows]) for rows in (planted, events)]
        lines.append(f"| {name} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Row], rivals: bool = True) -> str:
    names = ["class", "what", "seen at", "on", "perfguard", *(NAMES if rivals else ())]
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    for row in sorted(rows, key=lambda row: (row.mutant.classes, row.mutant.name)):
        name = row.mutant.name.removeprefix("guard: ").removeprefix("event: ")
        told = row.weighed.figure or row.mutant.shown[row.place].word or row.mutant.shown[row.place].says[0]
        cells = [", ".join(row.mutant.classes), name, row.mutant.imitates, row.place]
        cells += [f"{row.weighed.grade}: `{_short(told, 100)}`", *(row.rivals() if rivals else ())]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _open(rows: Sequence[Row]) -> list[str]:
    lines = [
        f"- {', '.join(row.mutant.classes)}: {row.mutant.name}, {PLACES[row.place]}: {row.mutant.open[row.place]}"
        for row in rows
        if row.place in row.mutant.open
    ]
    return ["## Not caught yet\n", "\n".join(lines) + "\n"] if lines else []


def _short(text: str, most: int = 60) -> str:
    line = text.splitlines()[0] if text else ""
    return line if len(line) <= most else line[: most - 1] + "…"
