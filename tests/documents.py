"""The tables of docs/results.md, made from the JSON files beside it: no number in them is typed by hand.

python -m tests.documents      writes them into the page; runs and measures nothing
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.first_contact import Ran
from benchmarks.first_contact import table as compared_commands
from benchmarks.pairs.__main__ import table as steps
from benchmarks.rows import markdown

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "results.md"
BEGIN, END = "<!-- tables of {} -->", "<!-- end of {} -->"

Data = Mapping[str, Any]


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def filled(text: str) -> str:
    """`text` with the tables of every source between its marks.

    Raises:
        ValueError: a source has no marks in `text`.
    """
    for name, make in SOURCES.items():
        begin, end = BEGIN.format(name), END.format(name)
        if begin not in text or end not in text:
            raise ValueError(f"{PAGE.name}: no line `{begin}` with a line `{end}` below it")
        before, _, rest = text.partition(begin)
        body = make(json.loads((DOCS / name).read_bytes()))
        text = f"{before}{begin}\n{body}\n{end}{rest.partition(end)[2]}"
    return text


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    return "\n".join(markdown(head, rows))


def _origin(data: Data, command: str) -> str:
    """Device, versions, date, commit and command, in one line."""
    versions = [f"{name} {data[name]}" for name in ("driver", "torch", "triton") if name in data]
    return f"{', '.join([data['device'], *versions, data['date']])}, commit {data['commit'][:12]}.\n\n{_code(command)}"


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _words(words: Iterable[str]) -> str:
    return ", ".join(f"{count} `{word}`" for word, count in sorted(Counter(words).items()))


def _range(counts: Sequence[float]) -> str:
    low, high = f"{min(counts):.0f}", f"{max(counts):.0f}"
    return low if low == high else f"{low} to {high}"


def launches(data: Data) -> str:
    """Host time of the public operators before and after the prepared launch, each beside a bare launch of its run."""
    bare = data["rows"][0]
    rows = [
        [
            row["name"] if row is bare else f"`{row['name']}`",
            row["launches"],
            f"{row['before_us']:.0f}" if "before_us" in row else "",
            f"{row['us']:.0f}",
            f"{row['before_us'] / bare['before_us']:.1f}" if "before_us" in row else "",
            f"{row['us'] / bare['us']:.1f}",
        ]
        for row in data["rows"]
    ]
    head = ["operator", "launches", f"{data['before']}, µs", "µs", f"{data['before']}, bare launches", "bare launches"]
    return f"{_origin(data, data['command'])}\n\n{_table(head, rows)}"


def hard(data: Data) -> str:
    """Hard inputs of the guarded suites on one device."""
    names = ("calls", "compared", "left_out", "accused")
    seconds = ("hard_seconds", "check_seconds")
    rows = [
        [f"`{suite}`", *(row[name] for name in names), *(f"{row[name]:.0f}" for name in seconds)]
        for suite, row in data["suites"].items()
    ]
    total = {name: sum(row[name] for row in data["suites"].values()) for name in names + seconds}
    rows.append(["together", *(total[name] for name in names), *(f"{total[name]:.0f}" for name in seconds)])
    head = ["suite", "calls", "inputs compared", "left out", "accused", "seconds of hard inputs", "of the check"]
    return f"{_origin(data, data['command'])}\n\n{_table(head, rows)}\n\nNot covered: {data['note']}."


def first_contact(data: Data) -> str:
    """Seconds of a newcomer's commands, at an earlier commit and later."""
    before, now = (commit[:12] for commit in data["commits"].values())
    told = f"{data['date']}, {data['cores']} cores, commits {before} and {now}: {_code(data['command'])}"
    return f"{told}\n\n{compared_commands([Ran(**run) for run in data['runs']])}"


def loaded(data: Data) -> str:
    """Whole runs of scripts/guard on a busy machine."""
    rows = []
    for series in data.values():
        runs = series["runs"]
        first, *later = (run["seconds"] for run in runs)
        rows.append(
            [
                f"`{re.sub(r' --json [^ ]+', '', series['command'])}`",
                f"{series['date']}, {series['commit'][:7]}",
                len(runs),
                sum(run["status"] != 0 for run in runs),
                _words(word for run in runs for word, count in run["words"].items() for _ in range(count)),
                f"{first:.0f}",
                _range(later) if later else "-",
            ]
        )
    return _table(["command", "date, commit", "runs", "red", "verdicts", "first run, s", "later runs, s"], rows)


def observed(data: Data) -> str:
    """Foreign suites: what recording, running again and observing take, and the findings of planted changes."""
    head = ["suite", "on", "date, commit", "torch, triton", "cases", "recording", "run again in other orders"]
    head += ["plain, s", "observed, s", "price", "named"]
    rows, found = [], []
    for suite in data["suites"]:
        first = [suite["name"], suite["on"]]
        pairs = list(zip(suite["plain"], suite["observed"], strict=bool(suite["plain"])))
        quiet = [
            ": ".join(filter(None, [each["verdicts"], _took(each)]))
            + (", two processes" if each.get("processes", 1) > 1 else "")
            for each in suite["quiet"]
        ]
        named = sum(each["named"] for each in suite["planted"])
        rows.append([
            *first, f"{suite['date']}, {suite['commit'][:7]}", f"{suite['torch']}, {suite['triton']}",
            suite["tests"], _took(suite.get("recorded", {})), "; ".join(quiet),
            f"{median(suite['plain']):.1f}" if pairs else "", f"{median(suite['observed']):.1f}",
            f"{median(two / one for one, two in pairs):.2f}" if pairs else "", f"{named} of {len(suite['planted'])}",
        ])  # fmt: skip
        for each in suite["planted"]:
            said = _code(each["finding"]) if each["named"] else "not named"
            found.append([*first, each["change"], each["status"], said, _took(each)])
    told = _table(["suite", "on", "planted", "status", "named by", "seconds: processor, clock"], found)
    return "\n\n".join([f"{data['device']}.", _code(data["command"]), _table(head, rows), told])


def _took(run: Data) -> str:
    """Seconds of the processor and of the clock."""
    return f"{run['processor']:.0f}, {run['wall']:.0f} s" if "wall" in run else ""


def ranks(data: Data) -> str:
    """Times of layers over several GPUs, one recording's sessions."""
    lines = [
        [
            f"`{row['case']}`",
            ", ".join(f"{each / 1000:.3f}" for each in row["sessions"]),
            f"+{100 * (max(row['sessions']) / min(row['sessions']) - 1):.1f} %",
        ]
        for row in data["rows"]
    ]
    where = f"Links: {data['links']}. Facts over NCCL against gloo: {'; '.join(data['facts'])}."
    found = [_origin(data, data["command"]), _table(["case", "sessions, ms", "max / min"], lines), where]
    return "\n\n".join([*found, _planted_table(data)] if data.get("plants") else found)


def ranks_planted(data: Data) -> str:
    """What planted changes moved, of a recording whose times another one has taken anew."""
    return f"{_origin(data, data['command'])}\n\n{_planted_table(data)}"


def _planted_table(data: Data) -> str:
    return _table(["planted", "verdicts", "case", "ms"], _planted_on_ranks(data))


def _planted_on_ranks(data: Data) -> Iterator[list[str]]:
    """What each planted change moved: verdicts, and the times of the cases that are timed."""
    unchanged = {row["case"]: median(row["sessions"]) for row in data["rows"]}
    for plant in data["plants"]:
        first = [f"`{plant['plant']}`", _words(each["word"] for each in plant["fails"])]
        for case, read in plant["read"].items():
            yield [*first, f"`{case}`", f"{unchanged[case] / 1000:.2f} to {read['ranks_time_us'] / 1000:.2f}"]
            first = ["", ""]


def pipelines(data: Data) -> str:
    """Steps of pipelines by three schedules: time, memory beside the closed form, exchanges, by rank."""
    head = [
        "pp, ep",
        "schedule",
        "step, ms",
        "turns",
        "live",
        "peak, MiB",
        "live × kept, MiB",
        "at work, ms",
        "exchanges alone, ms",
    ]
    lines = []
    for row in data["rows"]:
        everyone = row["ranks"]
        steps = [max(turn) for turn in zip(*(each["ms"] for each in everyone), strict=True)]
        # Half of the micro-batches that a rank keeps are of each of its two stages.
        closed = [each["live"] * sum(each["kept_mib"]) / 2 for each in everyone]
        lines.append([
            f"{row['pp']}, {row['ep']}",
            row["schedule"],
            f"{median(steps):.0f} ({min(steps):.0f} to {max(steps):.0f})",
            _range([each["turns"] for each in everyone]),
            _range([each["live"] for each in everyone]),
            _range([each["peak_mib"] for each in everyone]),
            _range(closed),
            _range([each["computing_ms"] for each in everyone]),
            _range([each["exposed_ms"] for each in everyone]),
        ])  # fmt: skip
    return f"{_origin(data, data['command'])}\n\n{_table(head, lines)}"


def paired(data: Data) -> str:
    """Steps of benchmarks.pairs: unchanged suites and worse configurations."""
    return f"{_origin(data, data['command'])}\n\n" + "\n".join(steps(data["entries"]))


def peers(data: Data) -> str:
    """Our kernels beside other libraries'."""
    rows = []
    for each in data["results"]:
        shown = [f"{each['device_us']:.1f}", f"{each['times']:.2f}", f"{each['host_us']:.0f}"]
        shown += ["" if each[name] is None else f"{each[name]:.0f}" for name in ("peak_mib", "tflops", "copy_percent")]
        rows.append([f"{each['job']}, `{each['shape']}`", each["rival"], *shown])
    head = ["job", "by", "µs", "times the first", "host, µs", "peak, MiB", "TFLOP/s", "% of a copy"]
    return f"{_origin(data, data['command'])} A copy of 1 GiB: {data['copy_tbps']} TB/s.\n\n{_table(head, rows)}"


def public_reports(data: Data) -> str:
    """What of the public's reports is caught: a row for each, and the sums before them."""
    rows = data["reports"]
    faults = [row for row in rows if not row["correct"]]
    caught, named = (sum(row[name] for row in faults) for name in ("caught", "named"))
    accused = [row["id"] for row in rows if row["accused"]]
    told = f"Faults caught: {caught} of {len(faults)}, named: {named}. Accused in vain: {', '.join(accused) or 'none'}."
    lines = []
    for row in rows:
        said = row["accused"] or row["by"]
        word = (
            "**accused**" if row["accused"] else "caught" if row["caught"] else "quiet" if row["correct"] else "missed"
        )
        lines.append([
            row["id"], row["kind"], row["origin"], row["shows"], word, "yes" if row["named"] else "",
            _code(said) if said else "", f"{row['seconds'][-1]:.0f}",
        ])  # fmt: skip
    head = ["report", "kind", "origin", "shown by", "", "named", "by", "s"]
    return f"{_origin(data, data['command'])}\n\n{told}\n\n{_table(head, lines)}"


SOURCES: dict[str, Callable[[Data], str]] = {
    "h200-launches.json": launches,
    "host-stub.json": launches,
    "reports.json": public_reports,
    "reports-later.json": public_reports,
    "reports-third.json": public_reports,
    "reports-fourth.json": public_reports,
    "reports-fifth.json": public_reports,
    "h200-hard.json": hard,
    "cpu-hard.json": hard,
    "first-contact.json": first_contact,
    "first-contact-compare.json": first_contact,
    "first-contact-lane.json": first_contact,
    "first-contact-h200.json": first_contact,
    "loaded-guard.json": loaded,
    "observed.json": observed,
    "h200-x2.json": ranks,
    "h200-x2-plants.json": ranks_planted,
    "h100-launches.json": launches,
    "h100-pairs.json": paired,
    "h100-peers.json": peers,
    "h100-x2.json": ranks,
    "h200-x4.json": ranks,
    "h200-pipelines.json": pipelines,
    "h200-pipelines-x2.json": pipelines,
    "h200-delays.json": paired,
    "h200-paired.json": paired,
    "h200-families.json": paired,
    "h200-blocks.json": paired,
    "h200-kernels.json": peers,
    "h200-peers.json": peers,
}

if __name__ == "__main__":
    main()
