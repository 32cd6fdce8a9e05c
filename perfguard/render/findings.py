"""The rows of every output: a verdict with its case and lane, a cause with all verdicts that it explains, and an edit
of the baselines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from msgspec import Struct

from perfguard.model.records import Case, CaseResult, Reading, Value, Verdict, Word
from perfguard.model.records.code import kernel_of, same_code
from perfguard.model.units import Unit, counted, format_apart, format_percent, format_value
from perfguard.render.words import (
    PLAIN_PREFIX,
    CommandPrefix,
    because,
    interval_text,
    listed,
    most_common,
    moved,
    next_step,
    one_line,
    percent,
)

MOVED = (Word.SLOWER, Word.CHANGED, Word.FASTER, Word.BETTER)
INCONCLUSIVE = (Word.UNRESOLVED, Word.SUSPECT)
QUIET = (Word.PASS, Word.UNCHANGED, Word.UNSUPPORTED)
NOT_GUARDED = tuple(word for word in Word if word.unguarded and word not in INCONCLUSIVE)
MOST_NODEIDS = 3  # More cases are selected by their tests without parameters.
_KINDS = {"UNPAIRED": "not measured beside a base", "UNDECIDED": "too few process pairs", "NOISY": "too noisy"}


@dataclass(frozen=True)
class Finding:
    """A verdict with its case and lane. Its texts may be untrusted, and each output escapes them in its own way.

    Attributes:
        cause: the kernel or line of Python that an observed test's finding is about; "" for guarded cases.
        accepted: whether an edit of the baselines covers the verdict.
    """

    lane: str
    result: CaseResult
    verdict: Verdict
    cause: str = ""
    accepted: bool = False

    @property
    def reading(self) -> Reading | None:
        return self.result.reading(self.verdict.metric)

    @property
    def word(self) -> str:
        """`SLOWER`, `CHANGED, accepted`, `not gated`."""
        ungated = self.verdict.word is Word.PASS and self.reading is not None and not self.reading.gated
        return ("not gated" if ungated else self.verdict.word.value) + ", accepted" * self.accepted

    def values(self, most: int) -> tuple[str, str]:
        """The differing parts of the value before and now; empty texts for missing values.

        Args:
            most: the most characters of each text.
        """
        before, after, unit = self.verdict.before, self.verdict.after, self.verdict.unit
        if after is None and self.reading is not None:
            after, unit = self.reading.value, self.reading.unit
        if before is not None and after is not None:
            return format_apart(before, after, unit, most)
        shown = ["" if value is None else format_value(value, unit) for value in (before, after)]
        return shown[0], shown[1]

    @property
    def change(self) -> str:
        """`6.1 % slower (5.5 to 6.7)` for a change, otherwise the plain difference."""
        verdict = self.verdict
        if verdict.unit is Unit.TEXT:
            return "different" if verdict.word in MOVED else ""
        if verdict.ratio is None or verdict.word in MOVED:
            return moved(verdict)
        interval = interval_text(verdict)
        return f"{percent(verdict)}{f' ({interval})' if interval else ''}"

    @property
    def share(self) -> str:
        """The case's throughput as a share of a copy's; empty for metrics other than times."""
        through = self.result.throughput if self.reading is not None and self.reading.timed else None
        return format_percent(through.copy_fraction, 0) if through and through.copy_fraction else ""

    @property
    def urgency(self) -> tuple[int, int, float]:
        """The sort key, worst first: by word and metric (`CaseResult.sort_key`), then by the size of the slowdown; the
        best come first among FASTER."""
        ratio = self.verdict.ratio or 0.0
        best_first = self.verdict.word in (Word.FASTER, Word.BETTER)
        return *self.result.sort_key(self.verdict), ratio if best_first else -ratio

    @property
    def kernel(self) -> str:
        """The guarded kernel, guessed from the case's name: the test without its parameters."""
        return re.split(r"[\[:/]", self.result.case.name, maxsplit=1)[0]


@dataclass(frozen=True)
class Cause:
    """One cause with all failing verdicts that it explains: the row by which a reader learns what happened, and why.

    Attributes:
        name: a kernel, a line (`mynorm.py:8 in rms_norm`), or the guarded test if nothing closer is known.
        findings: the failing verdicts, the worst first; at least one.
        place: the file and line of the cause in the measured commit, `kernels/rows.py:44`; "" if unknown.
        changes: what changed in it: `held 9 -> 2`, `spills 0 -> 12 on sm_90`; empty if unknown.
    """

    name: str
    findings: list[Finding]
    place: str = ""
    changes: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """`reduce_rows (kernels/rows.py:44)`."""
        return f"{self.name} ({self.place})" if self.place and self.place not in self.name else self.name

    @property
    def worst(self) -> Finding:
        return self.findings[0]

    @cached_property
    def cases(self) -> dict[tuple[str, Case], Finding]:
        """(lane, case) -> its worst finding, worst case first."""
        worst: dict[tuple[str, Case], Finding] = {}
        for finding in self.findings:
            worst.setdefault((finding.lane, finding.result.case), finding)
        return worst

    @property
    def counts(self) -> Counter[Word]:
        """The number of cases by their worst verdict."""
        return Counter(finding.verdict.word for finding in self.cases.values())

    @cached_property
    def lanes(self) -> list[str]:
        """The lanes with a finding, that of the worst first."""
        return list(dict.fromkeys(finding.lane for finding in self.findings))

    @property
    def change(self) -> str:
        """What changed, on one line; the reason of the worst finding if nothing is known."""
        return listed(self.changes) or because(self.worst.verdict)

    @property
    def worst_text(self) -> str:
        """The worst case with its values and interval, or with the failed check of a wrong result and its limit."""
        return f"{self.worst.result.case.key}  {one_line(self.worst.verdict)}"

    @property
    def nodeids(self) -> list[str]:
        """Node ids that select its cases: those of at most `MOST_NODEIDS` cases, or the tests without parameters."""
        nodeids = list(dict.fromkeys(finding.result.case.nodeid for finding in self.cases.values()))
        return nodeids if len(nodeids) <= MOST_NODEIDS else list(dict.fromkeys(each.split("[")[0] for each in nodeids))


@dataclass(frozen=True)
class OtherCode:
    """Kernels whose code differs from the recorded one, in a lane that reads no times and cannot judge their speed.

    Attributes:
        moved: the results, each with the reading and the verdict that show other code. Names in them may be untrusted.
    """

    moved: list[tuple[CaseResult, Reading, Verdict]]

    def __str__(self) -> str:
        """`other code in 3 cases`."""
        return f"other code in {counted(len({result.case for result, _, _ in self.moved}), 'case')}"

    @property
    def kernels(self) -> list[str]:
        """Kernels whose code differs, in the report's order."""
        names: dict[str, None] = {}
        for _, _, verdict in self.moved:
            then, now = (value if isinstance(value, dict) else {} for value in (verdict.before, verdict.after))
            moved = [part for part in {**now, **then} if not same_code(str(then.get(part)), str(now.get(part)))]
            names |= {kernel_of(part): None for part in moved}
        return list(names)


@dataclass(frozen=True)
class Undecided:
    """Timed cases that could not be judged.

    Attributes:
        findings: the undecided gated times of these cases.
        of: the number of cases with a verdict on a gated time.
    """

    findings: list[Finding]
    of: int

    def __str__(self) -> str:
        return f"{self.cases} of {counted(self.of, 'timed case')} could not be judged"

    @property
    def cases(self) -> int:
        """The number of cases with undecided times."""
        return len({(each.lane, each.result.case) for each in self.findings})

    @property
    def kind(self) -> str:
        """The kind of the most common cause, without names."""
        return next((text for start, text in _KINDS.items() if self.most_common[0].startswith(start)), "not read")

    def cause(self, nodeids: Sequence[str], by: CommandPrefix = PLAIN_PREFIX) -> tuple[str, str]:
        """The most common cause, and a text with its share of the times (if not all) and the next step. Requires at
        least one finding.

        Args:
            nodeids: the tests; the next step names the test if there is only one.
            by: the beginning of the command.
        """
        cause, share = self.most_common
        some = "" if share == len(self.findings) else f" ({share} of {len(self.findings)} times)"
        step = next_step(cause, nodeids, by)
        return cause, f"{some}; {step}" if step else some

    @property
    def most_common(self) -> tuple[str, int]:
        """The most common cause, and the number of times with it; requires at least one finding."""
        return most_common([finding.verdict.reason for finding in self.findings])


class BaselineEdit(Struct, frozen=True):
    """One entry of the baselines, or one setting, that the change edits.

    Attributes:
        folder: the folder of the entry, such as `nvidia-h200` or `cpu`, or the file of the setting.
        before, after: the entry's value, or the centre of its sessions for a time; None if it is added or removed.
        loosens: what lets a worse reading pass than before the edit (or removal), in words; empty if nothing does.
        measured: the reading in this change's own report, if any.
    """

    folder: str
    suite: str
    case: str
    metric: str
    unit: Unit
    before: Value | None
    after: Value | None
    reason: str = ""
    loosens: str = ""
    measured: Value | None = None

    def values(self, most: int) -> tuple[str, str, str]:
        """The entry before and after, and the measured value, as texts of at most `most` characters each."""
        measured = "not measured" if self.measured is None else format_value(self.measured, self.unit)
        if self.before is None or self.after is None:
            before = "none" if self.before is None else format_value(self.before, self.unit)
            return before, "removed" if self.after is None else format_value(self.after, self.unit), measured
        return *format_apart(self.before, self.after, self.unit, most), measured
