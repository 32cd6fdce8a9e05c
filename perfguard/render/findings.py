"""A verdict with its case and lane: the row that every output shows, and the order of the rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from perfguard.model.records import CaseResult, Reading, Verdict, Word
from perfguard.model.records.code import kernel_of, same_code
from perfguard.model.units import Unit, counted, format_apart, format_percent, format_value
from perfguard.render.words import PLAIN_PREFIX, CommandPrefix, interval_text, most_common, moved, next_step, percent

MOVED = (Word.SLOWER, Word.CHANGED, Word.FASTER, Word.BETTER)
INCONCLUSIVE = (Word.UNRESOLVED, Word.SUSPECT)
QUIET = (Word.PASS, Word.UNCHANGED, Word.UNSUPPORTED)
NOT_GUARDED = tuple(word for word in Word if word.unguarded and word not in INCONCLUSIVE)
_KINDS = {"UNPAIRED": "not measured beside a base", "UNDECIDED": "too few process pairs", "NOISY": "too noisy"}


@dataclass(frozen=True)
class Finding:
    """A verdict with its case and lane. Its texts may be untrusted, and each output escapes them in its own way.

    Attributes:
        grouped: whether the finding stands for all observed tests with one cause.
        accepted: whether an edit of the baselines covers the verdict.
    """

    lane: str
    result: CaseResult
    verdict: Verdict
    grouped: bool = False
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


def by_kernel(findings: Sequence[Finding]) -> list[tuple[str, list[Finding]]]:
    """Findings by kernel, in their order; the kernel with the most findings comes first."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.kernel, []).append(finding)
    return sorted(groups.items(), key=lambda group: -len(group[1]))


#: A number with its unit, which differs between cases of one cause; those of lines and within names do not.
_NUMBER = re.compile(r"(?<![\w:])[+-]?\d[\d.]*(?: (?:[KMGT]?i?B|%|µs|ms|s)(?!\w))?")
_NAMES = re.compile(r"[+-] |`|\.py:\d")  # A kernel or operator that came or went, or a line.


def by_same_cause(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings of guarded cases with one cause together, in the order of their first: the same metric moved, and the
    same kernels, operators or lines explain it, whatever the numbers; without such a name in one test function."""
    groups: dict[object, list[Finding]] = {}
    for finding in findings:
        verdict = finding.verdict
        reason = verdict.reason
        if verdict.word in (Word.SLOWER, Word.FASTER):  # Numbers alone are no cause.
            reason = reason.partition("because: ")[2]
        cause = _NUMBER.sub("", reason)
        alone = finding.grouped or not cause or verdict.word in (Word.WRONG, Word.BROKEN)
        key = (verdict.metric, cause, "" if _NAMES.search(reason) else finding.kernel)
        groups.setdefault(id(finding) if alone else key, []).append(finding)
    return list(groups.values())


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
