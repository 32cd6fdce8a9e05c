"""The page of all mutants: what perfguard says of each, and what others say of the same run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.planting import Grade, Mutant, Place
from benchmarks.rows import markdown
from perfguard.model.records import Word
from tests.corpus.rivals import NAMES, Seen
from tests.corpus.saved import Judged, Part, key

COMMANDS = """\
python -m tests.corpus --save tests/corpus/seen/cpu.json               # on a machine without a GPU
python -m tests.corpus --rivals --save tests/corpus/seen/rivals.json
python -m tests.corpus --clean 20 --save tests/corpus/seen/clean.json
python -m tests.corpus --save tests/corpus/seen/gpu.json               # on one with a GPU
python -m tests.corpus --table docs/corpus.md
"""
PLACES = {
    "I": "Triton's interpreter",
    "C": "torch operators on a CPU",
    "X": "cross-compiled",
    "S": "simulated GPU",
    "G": "GPU",
}
HEAD = f"""\
# The regression corpus

What perfguard catches: classes of regressions that happened in public, each planted in our own kernels by the smallest
change that makes it, with the verdict of perfguard and of other tools; then harmless events that look like regressions.
The mutants stand in `tests/corpus/`; `pytest tests/corpus` judges them again, and so does CI every night; with every
change it judges a part of them, at least one of each class. The last of these commands writes this page

```
{COMMANDS}```

from what the others saved in `tests/corpus/seen/`.

Each mutant is an uncommitted change in a small git repository of its own, whose commit holds the clean files and their
baselines. A time in question is therefore measured beside that commit, in process pairs. An event of the machine is
committed as well: base and working tree run on the same machine. In a clean run the working tree differs by a comment.

**Caught**: the right verdict, by the metric that names the cause, on the affected cases and no others, in words to act
on. **Half**: the affected cases fail without a cause. A rival that compares times can be half at most. **False alarm**:
a case fails that was not changed. Rivals see the same mutants, each in its usual set-up: `assert_close` of outputs and
gradients at rtol 0.016 and atol 0.01; pytest-benchmark with `--benchmark-compare-fail=median:5%` against a run of the
clean tree; medians of triton's `do_bench` with a gate of 5 %, on a GPU only. They are not asked on the simulated GPU:
they would time the simulation. Nor are they asked of several ranks (class D), which they do not start.
"""

# What has no mutant, and why; classes of wrong results have a file of their own.
MISSING = (
    "K16 by `perfguard compare` on a CPU: 4 % lie just above the least that can fail there (a third of 10 %); "
    "`tests/flows/test_compare.py` holds the words.",
    "Equally fast configurations that swap: there is no word for another configuration.",
    "A code of fp8 that flips at a tie: `tests/check/test_numerics.py` holds that ties are counted and pass.",
    "Another host of the same kind, a reboot, power caps, two modes of a machine: they take other machines.",
    "Two branches that add cases to one file: `tests/store/test_merging.py`. Lanes without a report: "
    "`tests/session/test_report_command.py`. A device that faults, memory that runs out, results from a cache: "
    "`tests/flows/test_faults.py`.",
    "D17: what lies in memory that has not been written differs from run to run, and so does the way in which the test "
    "breaks; on a GPU it is a race.",
    "D22: a queue that is emptied last in, first out makes the same sums in another order: `tests/distributed/"
    "test_pipeline.py` compares their bits. Too few micro-batches are refused by torch, which a test there holds.",
    "Of events of several ranks: another port comes with each run, four ranks on two cores with each night's guarded "
    "suite. Another order of equal pairs of GPUs takes GPUs. Real ranks where a layout was recorded have its exchanges "
    "to the byte, but not its copies and reads of the host, which follow from data and backend.",
)


@dataclass(frozen=True)
class Row:
    """One mutant in one place, judged by perfguard, and by rivals where they were asked."""

    mutant: Mutant
    place: Place
    judged: Judged
    seen: Seen | None

    @property
    def hygiene(self) -> bool:
        return "K38" in self.mutant.classes

    @property
    def event(self) -> bool:
        return is_event(self.mutant, self.place) and not self.hygiene

    @property
    def rivals(self) -> list[str]:
        """A cell for each rival."""
        return rival_cells(self.mutant, self.place, self.judged.tests, self.seen)


def is_event(mutant: Mutant, place: Place) -> bool:
    """Whether nothing may fail."""
    word = mutant.shown[place].word
    return bool(word) and not Word(word).fails


def rival_cells(mutant: Mutant, place: Place, affected: Sequence[str], seen: Seen | None) -> list[str]:
    """What each rival said, with the first failing test's words; `affected`: the tests that ought to fail."""
    if seen is None:
        return ["not asked"] * len(NAMES)
    best = [Grade.CAUGHT if mutant.shown[place].word == Word.WRONG else Grade.HALF, Grade.HALF, Grade.HALF]
    hits = () if is_event(mutant, place) else affected
    return [_rival_cell(fails, hits, grade) for fails, grade in zip(seen.of(), best, strict=True)]


def _rival_cell(fails: Mapping[str, str] | None, affected: Sequence[str], best: Grade) -> str:
    if fails is None:
        return "not run"
    hit, others = sorted(set(fails) & set(affected)), sorted(set(fails) - set(affected))
    cells = [f"{best} ({_short(fails[hit[0]])})"] if hit else []
    cells += [f"{Grade.FALSE} ({len(others)}: {_short(fails[others[0]])})"] if others else []
    return "; ".join(cells) or (Grade.MISSED if affected else "quiet")


def page(mutants: Sequence[tuple[Mutant, Place]], parts: Sequence[Part]) -> str:
    """Markdown: all mutants of which a part speaks, the last that does, and the names of the others."""
    judged = {name: each for part in parts for name, each in part.judged.items()}
    seen = {name: each for part in parts for name, each in part.rivals.items()}
    rows = [
        Row(m, place, judged[key(m, place)], seen.get(key(m, place))) for m, place in mutants if key(m, place) in judged
    ]
    planted = [row for row in rows if not row.event and not row.hygiene]
    guard = [row for row in rows if row.hygiene]
    events = [row for row in rows if row.event]
    text = [HEAD, _summary(planted, events), _machines(parts), _clean(parts)]
    text += ["## Planted\n", _table(planted)]
    text += ["## The guard itself\n", "K38. No rival has a word for these.\n", _table(guard, rivals=False)]
    text += ["## Events that must stay quiet\n", _table(events)]
    text += _open(rows)
    text += ["## Out of reach, or held elsewhere\n", "\n".join(f"- {each}" for each in MISSING) + "\n"]
    waiting = [(mutant, place) for mutant, place in mutants if key(mutant, place) not in judged]
    if waiting:
        lines = [
            f"- {', '.join(mutant.classes)}: {mutant.name} ({PLACES[place]}){_why(mutant, place)}"
            for mutant, place in waiting
        ]
        text += ["## Not run yet\n", "\n".join(lines) + "\n"]
    return "\n".join(text)


def _why(mutant: Mutant, place: Place) -> str:
    """Why nobody expects it to be caught there."""
    return f": {mutant.open[place]}" if place in mutant.open else ""


def _summary(planted: Sequence[Row], events: Sequence[Row]) -> str:
    counted = []
    for name, on_a_gpu in (("perfguard, without a GPU", False), ("perfguard, on a GPU", True)):
        grades = [row.judged.grade for row in planted if (row.place == "G") is on_a_gpu]
        quiet = [
            "quiet" if row.judged.grade is Grade.CAUGHT else row.judged.grade
            for row in events
            if (row.place == "G") is on_a_gpu
        ]
        counted.append((name, _counted(grades), _counted(quiet)))
    for number, name in enumerate(NAMES):
        cells = [_counted([row.rivals[number] for row in rows]) for rows in (planted, events)]
        counted.append((name, *cells))
    return "\n".join(markdown(["", "planted", "events"], counted)) + "\n"


def _counted(cells: Sequence[str]) -> str:
    """By how each cell begins; a false alarm counts as one, whatever else was seen."""
    found = Counter(str(Grade.FALSE) if Grade.FALSE in cell else cell.partition(" (")[0] for cell in cells)
    return ", ".join(f"{count} {name}" for name, count in sorted(found.items())) or "none"


def _machines(parts: Sequence[Part]) -> str:
    def told(part: Part) -> str:
        what = [
            f"{len(part.judged)} judged by perfguard" * bool(part.judged),
            f"rivals asked of {len(part.rivals)}" * bool(part.rivals),
            f"{len(part.clean)} clean suites" * bool(part.clean),
        ]
        minutes = f" in {part.minutes:.0f} minutes" if part.judged or part.clean else ""
        note = f". {part.note}" if part.note else ""
        return f"- {', '.join(each for each in what if each)}{minutes}: {part.machine}{note}"

    return "\n".join(told(part) for part in parts) + "\n"


def _clean(parts: Sequence[Part]) -> str:
    clean = {suite: each for part in parts for suite, each in part.clean.items()}
    if not clean:
        return ""
    head = ["suite", "runs", "verdicts", "false alarms", "unresolved"]
    found = []
    for suite, each in sorted(clean.items()):
        alarms = f"{len(each.alarms)}: {_short(each.alarms[0])}" if each.alarms else "0"
        found.append((suite, each.runs, each.verdicts, alarms, each.unresolved))
    return "\n".join(["Clean suites against their own baselines:\n", *markdown(head, found)]) + "\n"


def _table(rows: Sequence[Row], rivals: bool = True) -> str:
    names = ["class", "what", "seen at", "on", "perfguard", *(NAMES if rivals else ())]
    lines = []
    for row in sorted(rows, key=lambda row: (row.mutant.classes, row.mutant.name)):
        name = row.mutant.name.removeprefix("guard: ").removeprefix("event: ")
        told = row.judged.figure or row.mutant.shown[row.place].word or row.mutant.shown[row.place].says[0]
        cells = [", ".join(row.mutant.classes), name, row.mutant.imitates, row.place]
        cells += [f"{row.judged.grade}: `{_short(told, 100)}`", *(row.rivals if rivals else ())]
        lines.append(cells)
    return "\n".join(markdown(names, lines)) + "\n"


def _open(rows: Sequence[Row]) -> list[str]:
    """What is known not to be caught, with the reason; what was not caught all the same, with what was missing."""
    lines = []
    for row in rows:
        reason = row.mutant.open.get(row.place)
        if reason is None and row.judged.grade is not Grade.CAUGHT:
            reason = "; ".join(_short(problem, 160) for problem in row.judged.problems[:2])
        if reason is not None:
            lines.append(f"- {', '.join(row.mutant.classes)}: {row.mutant.name}, {PLACES[row.place]}: {reason}")
    return ["## Not caught yet\n", "\n".join(lines) + "\n"] if lines else []


def _short(text: str, most: int = 60) -> str:
    line = text.splitlines()[0] if text else ""
    return line if len(line) <= most else line[: most - 1] + "…"
