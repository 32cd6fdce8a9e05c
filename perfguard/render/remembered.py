"""What baseline files remember, a line a case: as Markdown, or as text for a terminal. It judges nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from perfguard.model.records import Baseline, CaseBaseline, Entry, Provenance, TimedEntry
from perfguard.model.units import counted, format_bytes, format_percent, format_time
from perfguard.render.escaping import clean, code

_MOST_NAMES = 4  # kernels of a case that are named
_MOST_REASON = 100  # characters of a reason
_VERSIONS = ("torch", "triton", "driver", "toolkit", "python")

Quote = Callable[[str], str]


@dataclass(frozen=True)
class Suite:
    """One file as a table. Columns that no case fills are left out."""

    title: str
    origin: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def remembered_as_markdown(baselines: Sequence[Baseline]) -> str:
    """A table of the folders; then a section a folder, a table a suite, a row a case."""
    lines = [f"### perfguard remembers {_counts(baselines)}", "", "| | holds | |", "| --- | --- | --- |"]
    for folder, files in _by_folder(baselines):
        lines.append(f"| {code(folder)} | {_counts(files)} | {_origin(_provenances(files), code)} |")
    for folder, files in _by_folder(baselines):
        lines += ["", f"#### {code(folder)}: {_counts(files)}"]
        for suite in (_suite(baseline, code) for baseline in files):
            cells = [suite.header, ["---"] * len(suite.header), *suite.rows]
            lines += ["", f"**{suite.title}**, {suite.origin}", ""]
            lines += [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join(lines)


def remembered_as_text(baselines: Sequence[Baseline]) -> str:
    """The same for a terminal, in columns."""
    lines = [f"perfguard remembers {_counts(baselines)}"]
    for folder, files in _by_folder(baselines):
        lines.append(f"  {clean(folder)}: {_counts(files)}; {_origin(_provenances(files), clean)}")
    for folder, files in _by_folder(baselines):
        lines += ["", f"{clean(folder)}: {_counts(files)}"]
        for suite in (_suite(baseline, clean) for baseline in files):
            cells = [suite.header, *suite.rows]
            widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
            lines += ["", f"  {suite.title}, {suite.origin}"]
            padded = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)
            lines += [f"    {line}" for line in padded]
    return "\n".join(lines)


def _by_folder(baselines: Sequence[Baseline]) -> Iterable[tuple[str, list[Baseline]]]:
    ordered = sorted(baselines, key=lambda baseline: (baseline.hardware.startswith("targets/"), baseline.hardware))
    return [(folder, list(files)) for folder, files in groupby(ordered, key=lambda baseline: baseline.hardware)]


def _counts(files: Sequence[Baseline]) -> str:
    cases = [case for baseline in files for case in baseline.cases.values()]
    timed = sum(isinstance(entry, TimedEntry) for case in cases for entry in case.entries.values())
    times = f", {counted(timed, 'time')}" if timed else ""
    return f"{counted(len(cases), 'case')}{times}, in {counted(len(files), 'suite')}"


def _suite(baseline: Baseline, quote: Quote) -> Suite:
    origins = {key: baseline.provenance_of(key) for key in baseline.cases}
    columns = _columns(baseline.cases.values())
    if len({_recorded(each) for each in origins.values()}) > 1:
        places = {id(case): _at(origins[key], quote) for key, case in baseline.cases.items()}
        columns = {**columns, "recorded": lambda case, quote: places[id(case)]}
    cases = sorted(baseline.cases.items())
    shown = {name: [column(case, quote) for _, case in cases] for name, column in columns.items()}
    filled = {"case": [quote(key) for key, _ in cases]} | {name: cells for name, cells in shown.items() if any(cells)}
    return Suite(
        title=f"{quote(baseline.suite)}: {counted(len(cases), 'case')}",
        origin=_origin(_provenances([baseline]), quote),
        header=list(filled),
        rows=list(zip(*filled.values(), strict=True)),
    )


# -- where a file comes from -------------------------------------------------------------------------------------------


def _provenances(files: Sequence[Baseline]) -> list[Provenance]:
    """Those of the cases; of a file without any, its own."""
    return [
        each for file in files for each in (map(file.provenance_of, file.cases) if file.cases else [file.provenance])
    ]


def _recorded(provenance: Provenance) -> tuple[str | None, str | None]:
    return provenance.recorded, provenance.commit


def _at(provenance: Provenance, quote: Quote) -> str:
    date, commit = _recorded(provenance)
    return " at ".join(quote(part) for part in (date, commit) if part) or "unknown"


def _origin(provenances: Sequence[Provenance], quote: Quote) -> str:
    """`recorded 2026-11-22 to 2026-11-25 at 3 commits, on board …; torch …, triton …`."""
    dates = sorted({each.recorded for each in provenances if each.recorded})
    commits = sorted({each.commit for each in provenances if each.commit})
    boards = sorted({each.board for each in provenances if each.board})
    told = "recorded"
    if dates:
        told += f" {' to '.join(quote(date) for date in dict.fromkeys((dates[0], dates[-1])))}"
    if commits:
        told += f" at {quote(commits[0]) if len(commits) == 1 else counted(len(commits), 'commit')}"
    if boards:
        told += f", on board {', '.join(map(quote, boards))}"
    versions = []
    for name in _VERSIONS:
        found = sorted({str(getattr(each, name)) for each in provenances if getattr(each, name)})
        versions += [f"{name} {' and '.join(map(quote, found))}"] if found else []
    return f"{told}; {', '.join(versions)}" if versions else told


# -- what a case remembers ---------------------------------------------------------------------------------------------

Column = Callable[[CaseBaseline, Quote], str]


def _columns(cases: Iterable[CaseBaseline]) -> Mapping[str, Column]:
    """Times, then what is known of metrics, then reasons."""
    metrics = list(dict.fromkeys(metric for case in cases for metric in sorted(case.entries)))
    timed = {metric for case in cases for metric, entry in case.entries.items() if isinstance(entry, TimedEntry)}
    columns: dict[str, Column] = {metric.removesuffix("_us"): _of(metric, _time) for metric in sorted(timed)}
    for metric, title, shown in _SHOWN:
        name = next((each for each in metrics if each == metric or each.rpartition(".")[2] == metric), None)
        if name is not None:
            columns[title] = _of(name, shown)
    binary = next((metric for metric in metrics if metric.endswith(".binary")), None)
    if binary is not None:
        columns["kernels"] = _of(binary, _names)
    if any(case.reasons for case in cases):
        columns["reasons"] = _why
    return columns


def _of(metric: str, shown: Callable[[Entry, Quote], str]) -> Column:
    def column(case: CaseBaseline, quote: Quote) -> str:
        entry = case.entries.get(metric)
        return "" if entry is None else shown(entry, quote)

    return column


def _time(entry: Entry, quote: Quote) -> str:
    """The median session, with half the range of the sessions."""
    if not isinstance(entry, TimedEntry):
        return ""
    middle = median(entry.sessions)
    if len(entry.sessions) == 1:
        return format_time(middle)
    return f"{format_time(middle)} ± {format_percent((max(entry.sessions) - min(entry.sessions)) / 2 / middle)}"


def _count(entry: Entry, quote: Quote) -> str:
    return f"{entry:,}" if isinstance(entry, int | float) else ""


def _bytes(entry: Entry, quote: Quote) -> str:
    return format_bytes(entry) if isinstance(entry, int | float) else ""


def _numbers(entry: Entry) -> list[float]:
    parts = entry.values() if isinstance(entry, dict) else ()
    return [float(part) for part in parts if not isinstance(part, str)]


def _most(entry: Entry, quote: Quote) -> str:
    return f"{max(_numbers(entry)):g}" if _numbers(entry) else ""


def _least(entry: Entry, quote: Quote) -> str:
    return f"{min(_numbers(entry)):g}" if _numbers(entry) else ""


def _sum(entry: Entry, quote: Quote) -> str:
    return f"{sum(_numbers(entry)):g}" if _numbers(entry) else ""


def _names(entry: Entry, quote: Quote) -> str:
    """The names, the most frequent first: a list's items, or a target's kernels."""
    if not isinstance(entry, list | dict):
        return ""
    found = Counter(name.split("/")[0].split("@")[0] if isinstance(entry, dict) else name for name in entry)
    shown = [quote(name) + (f" x{count}" if count > 1 else "") for name, count in found.most_common(_MOST_NAMES)]
    more = len(found) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _parts(entry: Entry, quote: Quote) -> str:
    parts = entry.items() if isinstance(entry, dict) else ()
    return ", ".join(quote(f"{name}: {part}") for name, part in parts)


def _why(case: CaseBaseline, quote: Quote) -> str:
    return "; ".join(quote(clean(why, _MOST_REASON)) for why in dict.fromkeys(case.reasons.values()))


#: Metric (of a target: without its name), title of its column, and how it is shown.
_SHOWN: list[tuple[str, str, Callable[[Entry, Quote], str]]] = [
    ("launches", "launches", _count),
    ("operators", "operators", _count),
    ("host_reads", "host reads", _count),
    ("peak_memory_bytes", "peak memory", _bytes),
    ("peak_tensor_bytes", "peak memory", _bytes),
    ("saved_activation_bytes", "saved", _bytes),
    ("registers", "most registers", _most),
    ("resident_warps", "least warps", _least),
    ("spills", "spills", _sum),
    ("unfit", "unfit", _parts),
    ("kernels", "kernels", _names),
]
