"""What many cases of a file share and the file therefore holds once: kernels with their facts, and long names.

A row is named by a digest of its content. So a row never changes: another fact is another row, and the lines of other
cases stay as they are. Two branches that add the same row add the same line.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping

from perfguard.model.records import CaseBaseline, Entry

Part = int | float | str
Row = dict[str, Part]  # metric, without its target -> the kernel's part of it

REFERENCE = "$"  # begins the short form of a long name
_LONG = 100  # most characters of a name in a list
_KERNEL = re.compile(r"[/@]")  # between a kernel and its second specialisation, or its configuration
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_TARGETS = "targets/"
_DIGEST = 8


def prefix_of(folder: str) -> str:
    """What the names of a target's metrics begin with, `sm_90.`; empty for a hardware, whose files have no kernels."""
    return f"{folder.removeprefix(_TARGETS)}." if folder.startswith(_TARGETS) else ""


def kernel_of(part: str) -> str:
    """The kernel that a part is about: `rows` of `rows/2` and of `rows@1`."""
    return _KERNEL.split(part, maxsplit=1)[0]


def rows_of(case: CaseBaseline, prefix: str) -> tuple[dict[str, Row], set[str]]:
    """The case's parts by kernel: part -> its row; and the metrics that the rows hold.

    Rows keep the order of the parts in every metric. A metric whose parts are in another order than the others' is left
    out, as is one without any part.
    """
    metrics = {
        metric: entry
        for metric, entry in case.entries.items()
        if prefix and metric.startswith(prefix) and metric != prefix and isinstance(entry, dict) and entry
    }
    rows: dict[str, Row] = {}
    held = set()
    for metric, entry in sorted(metrics.items(), key=lambda item: (-len(item[1]), item[0])):
        merged = _merged(list(rows), list(entry))
        if merged is not None:
            held.add(metric)
            rows = {part: rows.get(part, {}) for part in merged}
    for metric in sorted(held):
        for part, value in metrics[metric].items():
            rows[part][metric.removeprefix(prefix)] = value
    return rows, held


def _merged(known: list[str], more: list[str]) -> list[str] | None:
    """`known` with the further names of `more`, each behind the one before it; None where the orders disagree."""
    merged, place, seen = list(known), 0, set(known)
    for name in more:
        if name not in seen:
            merged.insert(place, name)
        else:
            try:
                place = merged.index(name, place)
            except ValueError:  # it stands before its forerunner
                return None
        place += 1
    return merged


def row_key(kernel: str, row: Row) -> str:
    """The name of a row: eight letters, which no YAML reader takes for a number."""
    return _letters(json.dumps([kernel, sorted(row.items())]))


def short_of(name: str) -> str | None:
    """The short form of a long name, with a word to recognise it by; None for a name that is short enough."""
    if len(name) <= _LONG:
        return None
    words = _WORD.findall(name)
    return f"{REFERENCE}{words[-1][:24] if words else ''}.{_letters(name)}"


def long_names(entries: Iterable[Entry]) -> Mapping[str, str]:
    """Short form -> name, of the long names in lists."""
    lists = [entry for entry in entries if isinstance(entry, list)]
    return {short: name for entry in lists for name in entry if (short := short_of(name)) is not None}


def _letters(text: str) -> str:
    number = int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest(), "big")
    letters = ""
    for _ in range(_DIGEST):
        number, letter = divmod(number, 26)
        letters += chr(ord("a") + letter)
    return letters
