"""What baseline files remember, a line a case: as Markdown, or as text for a terminal. It judges nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import NamedTuple

from perfguard.model.records import Baseline, Entry, Provenance, TimedEntry
from perfguard.model.units import counted, format_bytes, format_percent, format_time
from perfguard.render.escaping import clean, code

_MOST_NAMES = 4  # kernels of a case that are named
_MOST_REASON = 100  # characters of a reason
_VERSIONS = ("torch", "triton", "driver", "toolkit", "python")
# Exact metrics with a column. Those of a target are named after it: `sm_90.registers`.
_SHOWN = ("launches", "operators", "host_reads", "peak_memory_bytes", "peak_tensor_bytes", "saved_activation_bytes",
          "registers", "spills", "kernels")  # fmt: skip

Quote = Callable[[str], str]


class _File(NamedTuple):
    """One file as a table. Columns that no case fills are left out."""

    title: str
    header: list[str]
    rows: list[tuple[str, ...]]


def remembered_as_markdown(baselines: Sequence[Baseline]) -> str:
    """A table a file, a row a case."""
    lines = [f"### perfguard remembers {_counts(baselines)}"]
    for file in _files(baselines, code):
        cells = [file.header, ["---"] * len(file.header), *file.rows]
        lines += ["", f"**{file.title}**", "", *(f"| {' | '.join(row)} |" for row in cells)]
    return "\n".join(lines)


def remembered_as_text(baselines: Sequence[Baseline]) -> str:
    """The same for a terminal, in columns."""
    lines = [f"perfguard remembers {_counts(baselines)}"]
    for file in _files(baselines, clean):
        cells = [file.header, *file.rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines += ["", file.title, *(f"    {'  '.join(map(str.ljust, row, widths)).rstrip()}" for row in cells)]
    return "\n".join(lines)


def _counts(files: Sequence[Baseline]) -> str:
    cases = [case for baseline in files for case in baseline.cases.values()]
    timed = sum(isinstance(entry, TimedEntry) for case in cases for entry in case.entries.values())
    times = f", {counted(timed, 'time')}" if timed else ""
    return f"{counted(len(cases), 'case')}{times}, in {counted(len(files), 'suite')}"


def _files(baselines: Sequence[Baseline], quote: Quote) -> Iterable[_File]:
    for baseline in sorted(
        baselines, key=lambda file: (file.hardware.startswith("targets/"), file.hardware, file.suite)
    ):
        cases = dict(sorted(baseline.cases.items()))
        origins = {key: baseline.provenance_of(key) for key in cases}
        columns = {"case": [quote(key) for key in cases]}
        for metric in _metrics(baseline):
            name = metric.rpartition(".")[2].removesuffix("_us").removesuffix("_bytes").replace("_", " ")
            columns[name] = [_cell(metric, case.entries.get(metric), quote) for case in cases.values()]
        if len({(each.recorded, each.commit) for each in origins.values()}) > 1:
            columns["recorded"] = [_at(each, quote) for each in origins.values()]
        reasons = [dict.fromkeys(case.reasons.values()) for case in cases.values()]
        columns["reasons"] = ["; ".join(quote(clean(why, _MOST_REASON)) for why in each) for each in reasons]
        filled = {name: cells for name, cells in columns.items() if any(cells)}
        yield _File(
            f"{quote(baseline.hardware)} {quote(baseline.suite)}: {counted(len(cases), 'case')}, "
            f"{_origin(list(origins.values()) or [baseline.provenance], quote)}",
            list(filled),
            list(zip(*filled.values(), strict=True)),
        )


def _metrics(baseline: Baseline) -> list[str]:
    """The metrics with a column: all times, then the exact ones in their order."""
    found = {metric: entry for case in baseline.cases.values() for metric, entry in case.entries.items()}
    times = sorted(metric for metric, entry in found.items() if isinstance(entry, TimedEntry))
    return times + [metric for name in _SHOWN for metric in sorted(found) if metric.rpartition(".")[2] == name]


def _cell(metric: str, entry: Entry | None, quote: Quote) -> str:
    """A time as its median session with half the range of the sessions; the most of several parts; names, the most
    frequent first; nothing for an entry of another form."""
    if isinstance(entry, TimedEntry):
        middle, spread = median(entry.sessions), max(entry.sessions) - min(entry.sessions)
        return format_time(middle) + (f" ± {format_percent(spread / 2 / middle)}" if len(entry.sessions) > 1 else "")
    if isinstance(entry, list):
        found = Counter(entry)
        shown = [quote(name) + (f" x{count}" if count > 1 else "") for name, count in found.most_common(_MOST_NAMES)]
        more = len(found) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more else "")
    parts = entry.values() if isinstance(entry, dict) else [entry]
    numbers = [part for part in parts if isinstance(part, int | float)]
    if not numbers:
        return ""
    return format_bytes(max(numbers)) if metric.endswith("_bytes") else f"{max(numbers):,}"


def _at(provenance: Provenance, quote: Quote) -> str:
    return " at ".join(quote(part) for part in (provenance.recorded, provenance.commit) if part) or "unknown"


def _origin(provenances: Sequence[Provenance], quote: Quote) -> str:
    """`recorded 2026-11-22 to 2026-11-25 at 3 commits, on board …; torch …, triton …`."""

    def found(name: str) -> list[str]:
        return [quote(each) for each in sorted({getattr(each, name) for each in provenances} - {None})]

    dates, commits, boards = found("recorded"), found("commit"), found("board")
    told = "recorded"
    if dates:
        told += f" {' to '.join(dict.fromkeys((dates[0], dates[-1])))}"
    if commits:
        told += f" at {commits[0] if len(commits) == 1 else counted(len(commits), 'commit')}"
    if boards:
        told += f", on board {', '.join(boards)}"
    versions = [f"{name} {' and '.join(values)}" for name in _VERSIONS if (values := found(name))]
    return f"{told}; {', '.join(versions)}" if versions else told
