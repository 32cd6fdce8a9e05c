"""Sentences shared by all outputs: a verdict, an environment, the commands for a case."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from perfguard.model.call import CONFIGURATIONS, HARD_KINDS
from perfguard.model.records import (
    BY_TOOLCHAIN,
    NEW_SINCE_BASE,
    NO_BASE,
    NO_PAIRS,
    TOO_NOISY,
    CaseResult,
    Report,
    Toolchain,
    Verdict,
    Word,
)
from perfguard.model.records.change import CATEGORY_OF
from perfguard.model.records.report import VARIABLES, awaits_commit
from perfguard.model.units import (
    Unit,
    format_bandwidth,
    format_change,
    format_flops,
    format_list_change,
    format_move,
    format_parts_change,
    format_percent,
)

MOST_LISTED = 5  # The most tests, parts or kernels that are named.
MOST_NAMED = 8  # The most metrics of one case in a line.
MOST_OF_A_VALUE = 60  # The most characters of each of two values in a line.
NOT_TIMED = "not timed"
OLD_FAULT = "wrong beside the given inputs, at the base too"
EXACT_ONLY = f"{NOT_TIMED}: only what is the same on every machine of this kind was read"


#: Text that commands may contain as it is. Any other text may be untrusted.
_PLAIN = re.compile(r"[\w.,:/=+-]{1,100}", re.ASCII)
_BECAUSE = "because: "
# The part of a reason that `PairVerdict` and `in_states` produce.
_PAIRS = re.compile(r"; in \d+ process pairs?(, about \d+ would settle it)?(; two states [^;]*)?")


def tally(counts: Counter[Word]) -> str:
    """`1 SLOWER, 2 NEW, 47 PASS`: the number of cases by word, most urgent first."""
    return ", ".join(f"{counts[word]} {word}" for word in Word if counts[word])


def checked_beside(results: Iterable[CaseResult]) -> list[str]:
    """The checks beside the given calls: `hard inputs: 31 ran, 240 skipped: time budget (60 values, 180 sizes)`."""
    counted = [result.hard for result in results if result.hard is not None]
    ran, left_out, waiting = Counter[str](), Counter[str](), Counter[str]()
    for counts in counted:
        ran.update(counts.ran)
        left_out.update(counts.left_out)
        waiting.update(counts.waiting)
    others = ran.pop(CONFIGURATIONS, 0), 0, waiting.pop(CONFIGURATIONS, 0)
    inputs = ran.total(), left_out.total(), waiting.total()  # Reasons are in the report.
    texts = []
    for what, numbers in (("hard inputs", inputs), ("other configurations", others)):
        parts = [
            f"{n} {word}" for n, word in zip(numbers, ("ran", "left out", "skipped: time budget"), strict=True) if n
        ]
        texts += [f"{what}: {', '.join(parts)}"] if parts else []
    kinds = ", ".join(f"{waiting[kind]} {kind}" for kind in HARD_KINDS if waiting[kind])
    return [f"{text} ({kinds})" if kinds and text.startswith("hard") else text for text in texts]


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as lines, with columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def listed(names: Sequence[str]) -> str:
    """`a, b, c, d, e and 3 more`."""
    more = len(names) - MOST_LISTED
    return f"{', '.join(names[:MOST_LISTED])}{f' and {more} more' if more > 0 else ''}"


def describe_verdict(verdict: Verdict) -> list[str]:
    """`SLOWER device_time_us: 61.2 µs -> 65 µs (+6.2 %, 95 % +5.5 to +6.7)`, then its reason on separate lines."""
    if not verdict.metric:  # The line above names the case.
        return verdict.reason.splitlines()
    change = _change(verdict)
    lines = [f"{verdict.word} {verdict.metric}{f': {change}' if change else ''}"]
    lines += [f"  {line}" for line in _reason_lines(verdict)]
    return lines


def one_line(verdict: Verdict, most: int | None = MOST_OF_A_VALUE) -> str:
    """`device_time_us 61.2 µs -> 65 µs (+6.2 %, 95 % +5.5 to +6.7)`; without a change, the reason's first line.

    Args:
        most: most characters of each value; None: no limit.
    """
    if verdict.metric and (change := _change(verdict, most)):
        return f"{verdict.metric} {change}"
    first = next(iter(verdict.reason.splitlines()), "")
    return first if first.startswith(verdict.metric) else f"{verdict.metric}: {first}".removesuffix(": ")


def more_lines(verdict: Verdict) -> list[str]:
    """The lines of the reason that `one_line` does not contain."""
    lines = _reason_lines(verdict)
    return lines[1:] if lines and lines[0] in one_line(verdict) else lines


def _reason_lines(verdict: Verdict) -> list[str]:
    """The lines of the reason, without a first one that only repeats the change of the metric."""
    lines = why(verdict).splitlines()
    return lines[1:] if lines and lines[0].startswith(f"{verdict.metric} ") else lines


def because(verdict: Verdict) -> str:
    """The part of the reason that names the cause; empty if none does."""
    return next((line.partition(_BECAUSE)[2] for line in verdict.reason.splitlines() if _BECAUSE in line), "")


def short(commit: str) -> str:
    """The first twelve characters of a commit, with the `+` of a tree with uncommitted changes."""
    return commit[:12] + "+" * (commit.endswith("+") and len(commit) > 12)


def why(verdict: Verdict) -> str:
    """The reason, for an undecided time with the smallest slowdown that its process pairs can detect."""
    if verdict.smallest is None or verdict.word is not Word.UNRESOLVED:
        return verdict.reason
    return f"{verdict.reason}; smallest detectable change: {format_percent(verdict.smallest)}"


def cause(reason: str) -> str:
    """A reason without the numbers of its case, so that equal causes of several verdicts compare equal."""
    if BY_TOOLCHAIN in reason:
        return reason.rpartition(BY_TOOLCHAIN)[2]
    first = next(iter(reason.splitlines()), "")
    return _PAIRS.sub("", first)


def most_common(reasons: Sequence[str]) -> tuple[str, int]:
    """The most common `cause` of these reasons and its count; requires at least one reason."""
    return Counter(map(cause, reasons)).most_common(1)[0]


def _change(verdict: Verdict, most: int | None = None) -> str:
    if verdict.before is None or verdict.after is None:
        return ""
    before, after = verdict.before, verdict.after
    if isinstance(before, list) and isinstance(after, list):
        text = format_list_change(before, after, None if most is None else 2 * most)
    elif isinstance(before, dict) and isinstance(after, dict):
        text = format_parts_change(before, after, verdict.unit, most)
    else:
        text = format_move(before, after, verdict.unit, most)
    if verdict.ratio is None or verdict.unit is Unit.TEXT:
        return text
    higher = higher_is_better(verdict)
    better = ["better"] if verdict.ratio < 1 else ["worse"] if higher else []
    parts = [percent(verdict), *better]
    if interval := interval_text(verdict):
        parts.append(f"95 % {interval}")
    return f"{text} ({', '.join(parts)})"


def higher_is_better(verdict: Verdict) -> bool:
    """Whether the values moved opposite to `ratio`, which is above 1 for the worse: a change from 8 to 16 warps is not
    50 % fewer warps."""
    before, after, ratio = verdict.before, verdict.after, verdict.ratio
    if ratio is None or verdict.unit is Unit.MICROSECONDS:
        return False
    pairs = [(before, after)]
    if isinstance(before, dict) and isinstance(after, dict):
        pairs = [(before[part], now) for part, now in after.items() if part in before]
    moved = [
        now > then
        for then, now in pairs
        if isinstance(then, int | float) and isinstance(now, int | float) and then != now
    ]
    return bool(moved) and all(rose is not (ratio > 1) for rose in moved)


def percent(verdict: Verdict) -> str:
    """`+6.1 %`, the change from the value before to the value after; empty without a ratio."""
    if verdict.ratio is None:
        return ""
    return format_change(1 / verdict.ratio if higher_is_better(verdict) else verdict.ratio)


def folded(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts of a case, merged into one for equal changes on several targets, and one for all NEW metrics, since
    an upgrade may add two dozen of them."""
    verdicts = _over_targets(verdicts)
    new = [each for each in verdicts if each.word is Word.NEW and each.metric and not awaits_commit(each)]
    if len(new) < 2:
        return verdicts
    names = [verdict.metric for verdict in new]
    more = f" … and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    one = Verdict(Word.NEW, f"{len(names)} metrics", f"no baseline: {', '.join(names[:MOST_NAMED])}{more}")
    at = next(index for index, verdict in enumerate(verdicts) if verdict is new[0])
    rest = [verdict for verdict in verdicts if not any(verdict is each for each in new)]
    return [*rest[:at], one, *rest[at:]]


def _over_targets(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """`spills on sm_80, sm_90` in place of `sm_80.spills` and `sm_90.spills` with equal changes."""
    same: dict[tuple[object, ...], list[Verdict]] = {}
    for at, verdict in enumerate(verdicts):
        target, _, name = verdict.metric.partition(".")
        text = verdict.reason.replace(f"{target}.", "").replace(f"{target}: ", "") if name else verdict.reason
        key = (verdict.word, name, text, str(verdict.before), str(verdict.after)) if name else (at,)
        same.setdefault(key, []).append(verdict)
    merged = []
    for first, *others in same.values():
        target, _, name = first.metric.partition(".")
        targets = ", ".join(each.metric.partition(".")[0] for each in (first, *others))
        metric = f"{name} on {targets}"
        reason = first.reason.replace(first.metric, metric)
        merged.append(msgspec.structs.replace(first, metric=metric, reason=reason) if others else first)
    return merged


def moved(verdict: Verdict) -> str:
    """`6.1 % slower (5.5 to 6.7)`, with the 95 % interval in parentheses; empty without a ratio."""
    if verdict.ratio is None:
        return ""
    worse, better = ("slower", "faster") if verdict.unit is Unit.MICROSECONDS else ("worse", "better")
    sign = 1 if verdict.ratio > 1 else -1
    size = abs(1 / verdict.ratio - 1) if higher_is_better(verdict) else sign * (verdict.ratio - 1)
    text = f"{format_percent(size)} {worse if sign > 0 else better}"
    if verdict.interval is None:
        return text
    low, high = sorted(sign * (end - 1) for end in verdict.interval)
    return f"{text} ({format_percent(low).removesuffix(' %')} to {format_percent(high).removesuffix(' %')})"


def interval_text(verdict: Verdict) -> str:
    """`+5.5 to +6.7`, in percent; empty without an interval."""
    return " to ".join(format_change(bound).removesuffix(" %") for bound in verdict.interval or ())


def limit_text(verdict: Verdict) -> str:
    """The largest change that does not fail."""
    return format_percent(verdict.limit) if verdict.limit else "any change"


def rates(result: CaseResult) -> list[str]:
    """The case's throughput: bytes and operations per second."""
    through = result.throughput
    if through is None:
        return []
    texts = [format_bandwidth(through.bytes_per_second)] if through.bytes_per_second else []
    return texts + ([format_flops(through.flop_per_second)] if through.flop_per_second else [])


def device(report: Report) -> str:
    """Device, driver, toolkit, clock and throttling, as far as known."""
    tools, conditions = report.toolchain, report.conditions
    clocks = [condition.clock_mhz for condition in conditions if condition.clock_mhz]
    throttled = sorted({reason for condition in conditions for reason in condition.throttle_reasons})
    parts = [
        report.hardware.name,
        f"driver {tools.driver}" if tools.driver else "",
        tools.toolkit or "",
        f"{clocks[-1]} MHz" if clocks else "",
        f"throttled: {', '.join(throttled)}" if throttled else "",
    ]
    return " · ".join(filter(None, parts))


def environment(report: Report) -> str:
    """One line with the device, versions and copy ceiling, as far as known."""
    tools, copy = report.toolchain, report.copy_bytes_per_second
    parts = [
        device(report),
        f"torch {tools.torch}" if tools.torch else "",
        f"triton {tools.triton}" if tools.triton else "",
        f"copy {format_bandwidth(copy)}" if copy else "",
        EXACT_ONLY if report.exact_only else "",
    ]
    return " · ".join(filter(None, parts))


class CommandPrefix(NamedTuple):
    """The beginning of commands that repeat a run: `variables` such as `TRITON_INTERPRET=1 `, and `options` such as
    ` --perfguard-lane=cpu`."""

    variables: str = ""
    options: str = ""

    @property
    def pytest(self) -> str:
        """`TRITON_INTERPRET=1 pytest --perfguard --perfguard-lane=cpu`."""
        return f"{self.variables}pytest --perfguard{self.options}"


PLAIN_PREFIX = CommandPrefix()


def command_prefix(report: Report) -> CommandPrefix:
    """The variables and options that commands need to repeat the run on the same machine: a lane that reads fewer
    metrics, a device named by an option, and the observation of tests. Only plain values are shown."""
    given = report.invocation
    variables = [(name, given.variables.get(name, "")) for name in VARIABLES]
    options = [("lane", report.lane if report.exact_only else ""), ("device", given.device)]
    observes = any(result.case.direction == "test" for result in report.results)
    return CommandPrefix(
        "".join(f"{name}={value} " for name, value in variables if _PLAIN.fullmatch(value)),
        "".join(f" --perfguard-{name}={value}" for name, value in options if _PLAIN.fullmatch(value))
        + " --perfguard-observe=." * observes,
    )


def toolchain_moves(before: Toolchain | None, now: Toolchain) -> str:
    """`triton 3.6.0 -> 3.9.0`: the differences between two toolchains; empty if there are none, or one is unknown."""
    if before is None:
        return ""
    both = ((name, getattr(before, name), getattr(now, name)) for name in Toolchain.__struct_fields__)
    return ", ".join(f"{name} {then or 'none'} -> {here or 'none'}" for name, then, here in both if then != here)


def reproduce_command(nodeid: str, by: CommandPrefix = PLAIN_PREFIX) -> str:
    """The command that measures one test again."""
    return f"{by.pytest} {shlex.quote(nodeid)}"


def compare_command(nodeid: str, by: CommandPrefix = PLAIN_PREFIX) -> str:
    """The command that compares one test with its merge base, without any baseline."""
    return f"{by.variables}perfguard compare -- {shlex.quote(nodeid)}"


def accept_command(words: set[Word], nodeids: Sequence[str] = (), by: CommandPrefix = PLAIN_PREFIX) -> str:
    """The command that writes the measured values into the baselines, of these tests or of all; empty if no verdict can
    be accepted."""
    categories = sorted({CATEGORY_OF[word] for word in words if word in CATEGORY_OF})
    if not categories:
        return ""
    command = f"{by.pytest} --perfguard-update={','.join(categories)}"
    if words & {Word.SLOWER, Word.CHANGED}:
        command += " --perfguard-reason 'why'"
    return " ".join([command, *map(shlex.quote, nodeids)])


def next_step(reason: str, nodeids: Sequence[str], by: CommandPrefix = PLAIN_PREFIX) -> str:
    """The next step for times that could not be judged for this reason; empty if the reason names it."""
    compare = compare_command(nodeids[0], by) if len(nodeids) == 1 else f"{by.variables}perfguard compare"
    if reason == TOO_NOISY:
        return "run it again where nothing else runs"
    if "pair_minutes" in reason:
        return f"raise it, or: {compare}"
    if reason.endswith((NO_PAIRS, NO_BASE.problem)):
        return compare
    if NEW_SINCE_BASE in reason:
        return f"record it: {accept_command({Word.NEW}, by=by)}"
    return ""
