"""The tables of docs/judging-rates.md, made from what a simulation counted: no number in them is typed by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from scipy import stats

from tests.judge.runs import Counts
from tests.judge.worlds import NOISE

Row = Mapping[str, Any]
BEGIN, END = "<!-- tables of {} -->", "<!-- end of tables -->"
_ROWS = ("hard", "worlds", "suites", "real")
_ZEROS = asdict(Counts())  # rows leave out what is 0
_TRUTHS = {"five": "5 cases", "tenth": "a tenth", "half": "half", "all": "all"}


def dumped(data: Mapping[str, Any]) -> str:
    """JSON with a row a line; what is 0 is left out."""
    parts = [f' "{key}": {json.dumps(value)}' for key, value in data.items() if key not in _ROWS]
    for key in _ROWS:
        rows = [json.dumps({name: value for name, value in row.items() if value != 0}) for row in data[key]]
        parts.append(f' "{key}": [\n  ' + ",\n  ".join(rows) + "\n ]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def filled(text: str, data: Mapping[str, Any], source: str) -> str:
    """`text` with the tables of `data` between its marks.

    Raises:
        ValueError: there are no such marks.
    """
    begin = BEGIN.format(source)
    if begin not in text or END not in text:
        raise ValueError(f"no line `{begin}` with a line `{END}` below it")
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{tables(data)}\n{END}{rest.partition(END)[2]}"


def tables(data: Mapping[str, Any]) -> str:
    """All of them, as Markdown."""
    hard, worlds, suites, real = ([{**_ZEROS, "effect": 0, **row} for row in data.get(key, ())] for key in _ROWS)
    where = f"{data['date']}, commit {data['commit'][:12]}"
    told = f"`{data['command']}`, {where}; at most {data['most_pairs']} process pairs."
    parts = [
        told,
        *(_of_hard(hard) if hard else []),
        "Nothing is slower. One row a world, suites of all sizes, with and without controls, K = 5 and 8:",
        _table(
            ["noise", "place", "suites", "false `SLOWER`", "upper limit", "false `FASTER`", "undecided", "paired",
             "pairs a paired case", "pairs a suite"],
            ([row["noise"], row["place"], *_quiet(row)] for row in worlds if row.get("kind") == "nothing"),
        ),
        "The same over all worlds, by the size of the suite:",
        _table(
            ["changed cases", "suites", "false `SLOWER`", "upper limit", "false `FASTER`", "undecided", "paired",
             "pairs a paired case", "pairs a suite"],
            ([row["cases"], *_quiet(row)] for row in pooled((r for r in suites if r["kind"] == "nothing"), ["cases"])),
        ),
        "Slower ones that were found, of all that were slower, and in brackets those that stayed undecided, by world:",
        _by_effect(worlds, ["noise", "place"]),
        "The same by how many cases of the run are slower, and by the size of the suite:",
        _by_effect(
            [{**row, "slower": _TRUTHS.get(row["kind"]), "changed cases": row["cases"]} for row in suites],
            ["slower", "changed cases"],
        ),
        "Half slower and half faster by 3 %; and a clock that falls by 4 % at equal cycles:",
        _table(
            ["noise", "`SLOWER` of the slower", "`FASTER` of the faster", "`SLOWER` at equal cycles", "cycles said"],
            _special(worlds),
        ),
        f"Real sessions, {real[0]['settings']} recordings on their own board and {real[-1]['settings']} couples of "
        "recordings on different boards or days, 5 changed cases and up to 20 controls:",
        _table(
            ["place", "slower by", "suites", "false `SLOWER`", "false `FASTER`", "found", "undecided",
             "pairs a paired case", "pairs a suite"],
            (_real(row) for row in real),
        ),
    ]  # fmt: skip
    return "\n\n".join(parts)


def summary(row: Row) -> str:
    """One line on the suites in which nothing moved."""
    return (
        f"{row['false_slower']} false SLOWER and {row['false_faster']} FASTER of {row['suites']} suites, "
        f"{_share(row['level_undecided'], row['level'])} of {row['level']} cases undecided"
    )


def upper_limit(found: int, of: int) -> float:
    """Of the 95 % interval (Clopper and Pearson's) of a share."""
    return float(stats.binomtest(found, of).proportion_ci(0.95, method="exact").high)


def _quiet(row: Row) -> list[object]:
    limit = f"{100 * upper_limit(row['false_slower'], row['suites']):.1f} %"
    return [
        row["suites"], row["false_slower"], limit, row["false_faster"], _share(row["level_undecided"], row["level"]),
        _share(row["paired"], row["level"]), _per(row["case_pairs"], row["paired"]),
        _per(row["suite_pairs"], row["suites"]),
    ]  # fmt: skip


def _of_hard(rows: Sequence[Row]) -> list[str]:
    heads = ["noise", "what it is", "suites", "false `SLOWER`", "upper limit", "false `FASTER`", "undecided"]
    return [
        "Nothing is slower, and the noise is of the kinds that break tests. The worst are first; in the last column "
        "are the suites of each size with a false `SLOWER`:",
        _table([*heads, "pairs a case", "by size"], map(_hard, _worst_first(rows))),
    ]


def _worst_first(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each noise, by the share of its suites with a false SLOWER."""
    noises: dict[str, list[Row]] = {}
    for row in rows:
        noises.setdefault(row["noise"], []).append(row)

    def share(rows: list[Row]) -> float:
        return sum(row["false_slower"] for row in rows) / sum(row["suites"] for row in rows)

    return sorted(noises.values(), key=share, reverse=True)


def _hard(rows: Sequence[Row]) -> list[object]:
    [row] = pooled(rows, ["noise"])
    sizes = (f"{each['cases']}: {each['false_slower']} of {each['suites']}" for each in rows)
    cells = _quiet(row)
    return [row["noise"], NOISE[row["noise"]].told, *cells[:5], cells[6], ", ".join(sizes)]


def _by_effect(rows: Iterable[Row], keys: Sequence[str]) -> str:
    slowed = [row for row in rows if row.get("kind") in _TRUTHS]
    effects = sorted({row["effect"] for row in slowed})
    found: dict[tuple[object, ...], dict[float, Row]] = {}
    for row in pooled(slowed, [*keys, "effect"]):
        found.setdefault(tuple(row[key] for key in keys), {})[row["effect"]] = row
    asked = [effect for effect in (0.03, 0.25) if effect in effects]
    heads = [*keys, *(f"{100 * effect:.0f} %" for effect in effects), "false `SLOWER`"]
    heads += [f"pairs a paired case at {100 * effect:.0f} %" for effect in asked]
    lines: list[list[object]] = []
    for name, cells in found.items():
        rates = [
            f"{_share(cells[effect]['slow_found'], cells[effect]['slow'])} "
            f"({_share(cells[effect]['slow_undecided'], cells[effect]['slow'])})"
            for effect in effects
        ]
        false = f"{sum(cell['false_slower'] for cell in cells.values())} of {sum(c['suites'] for c in cells.values())}"
        lines.append([*name, *rates, false, *(_per(cells[at]["case_pairs"], cells[at]["paired"]) for at in asked)])
    return _table(heads, lines)


def _special(worlds: Sequence[Row]) -> Iterable[list[object]]:
    mixed = pooled((row for row in worlds if row["kind"] == "mixed"), ["noise"])
    power = {row["noise"]: row for row in pooled((row for row in worlds if row["kind"] == "power"), ["noise"])}
    for row in mixed:
        clock = power[row["noise"]]
        yield [
            row["noise"], _share(row["slow_found"], row["slow"]), _share(row["fast_found"], row["fast"]),
            _share(clock["slow_found"], clock["slow"]), _share(clock["cycles_said"], clock["slow_found"]),
        ]  # fmt: skip


def _real(row: Row) -> list[object]:
    still = row["effect"] == 0
    return [
        row["place"], "nothing" if still else f"{100 * row['effect']:.0f} %", row["suites"],
        row["false_slower"] if still else "", row["false_faster"] if still else "",
        "" if still else _share(row["slow_found"], row["slow"]),
        _share(row["level_undecided"] + row["slow_undecided"], row["level"] + row["slow"]),
        _per(row["case_pairs"], row["paired"]), _per(row["suite_pairs"], row["suites"]),
    ]  # fmt: skip


def pooled(rows: Iterable[Row], keys: Sequence[str]) -> list[dict[str, Any]]:
    """The counts of rows with equal `keys`, added up."""
    sums: dict[tuple[object, ...], dict[str, Any]] = {}
    for row in rows:
        into = sums.setdefault(tuple(row[key] for key in keys), {**{key: row[key] for key in keys}, **_ZEROS})
        for name in _ZEROS:
            into[name] += row.get(name, 0)
    return list(sums.values())


def _share(some: int, of: int) -> str:
    return f"{100 * some / of:.1f} %" if of else "-"


def _per(some: int, of: int) -> str:
    return f"{some / of:.1f}" if of else "-"


def _table(heads: Sequence[object], lines: Iterable[Sequence[object]]) -> str:
    rule = ["---"] * len(heads)
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in (heads, rule, *lines))
