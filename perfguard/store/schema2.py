"""Reads baselines as perfguard wrote them until schema 2, for one release, and converts a whole tree of them:

    python -m perfguard.store.schema2 baselines/

Records of compiled targets (`targets/sm_90`) and metrics that gate nothing are not stored any more, so they are
dropped; `targets/cpu` is `cpu` now. Of a time, the last sessions stay.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import yaml
from msgspec.structs import replace

from perfguard.model.atomic_files import write_atomically
from perfguard.model.errors import BaselineError
from perfguard.model.records import Baseline, CaseBaseline, Entry, Provenance
from perfguard.model.records.baseline import EVERY_CPU, MOST_SESSIONS, as_stored
from perfguard.model.units import significant
from perfguard.store.baseline_form import entry_of, is_time, loaded, mistake, parse, render

TARGETS = "targets"
#: The folder of what holds on every CPU.
FOLDER = f"{TARGETS}/{EVERY_CPU}"

# What gated nothing and covered nothing when these files were written.
_UNGATED = {
    "autotune", "bus_gb_per_second", "bus_share", "copy_places", "exposed_us", "graph_break_reasons",
    "graph_functions", "guards", "host_read_places", "interconnect", "kernels", "library_calls",
    "operator_names", "overlap_share", "ranks_floor_us", "ranks_time_us", "recompile_guards", "residue_places",
    "saved_by", "saved_tensors", "saved_weight_bytes", "skew_us", "transfer_us", "wall_time_us",
    "workspace_bytes",
}  # fmt: skip
_PLAIN = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_FIELDS = ("inputs", "reasons", "provenance", "facts", "binaries")


def baseline(text: str, path: Path, folder: str, suite: str) -> Baseline:
    """The content of a file of schema 1 or 2.

    Raises:
        BaselineError: it is no such file of this folder.
    """
    try:
        return _baseline(text, path, folder, suite)
    except (msgspec.ValidationError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise mistake(path, f"no baseline of schema 1 or 2 ({error!r})") from error


def _baseline(text: str, path: Path, folder: str, suite: str) -> Baseline:
    file = loaded(text, path)
    plain = yaml.load(text, Loader=_PLAIN)  # versions have no quotes, even those that look like numbers
    names, cases = file.get("names", {}), plain["cases"]
    if (named := file.get("hardware", file.get("target"))) != folder:
        raise mistake(path, f"a file of {named}, expected one of {folder}, as the folder says")
    found = Baseline(folder, suite)
    for key, case in file["cases"].items():
        entries = {metric: entry for metric, entry in case.items() if metric not in _FIELDS} | case.get("facts", {})
        kept = {
            metric: as_stored(entry_of(_shortened(entry, names), path, f"cases.{key}.{metric}"))
            for metric, entry in entries.items()
            if is_time(entry) or metric not in _UNGATED
        }
        if kept:
            own = cases[key].get("provenance", plain["provenance"])
            why = _reason(case.get("reasons", {}), kept)
            found, recording = found.with_recording(replace(msgspec.convert(own, Provenance, strict=False), reason=why))
            new = CaseBaseline(kept, case.get("inputs", ""), recording)
            found = replace(found, cases={**found.cases, key: new})
    return found


def _shortened(entry: Any, names: Mapping[str, str]) -> Any:
    """The entry with its last sessions, of which the level stays the anchor, and with the long names in full."""
    if is_time(entry) and len(entry["sessions"]) > MOST_SESSIONS:
        level = {"anchor": significant(median(entry["sessions"]))}
        return {**level, **entry, "sessions": entry["sessions"][-MOST_SESSIONS:]}
    return [names.get(str(item), item) for item in entry] if isinstance(entry, list) else entry


def _reason(reasons: Any, kept: Mapping[str, Entry]) -> str:
    """The reasons of the metrics that are kept, from `metric: why` or from `- {of: [metric, metric], why: why}`."""
    each = reasons.items() if isinstance(reasons, dict) else [(of, one["why"]) for one in reasons for of in one["of"]]
    return "; ".join(dict.fromkeys(why for metric, why in each if metric in kept and why))


def convert(root: Path) -> None:
    """Write all baselines below `root` in the present form.

    Raises:
        BaselineError: a file that cannot be read. The files before it are converted.
    """
    for path in sorted(root.glob("*/*.yaml")) + sorted((root / FOLDER).glob("*.yaml")):
        folder = path.parent.name
        old = parse(path.read_bytes(), path, folder, path.stem)
        if old.cases:
            target = root / folder / path.name
            target.parent.mkdir(exist_ok=True)
            write_atomically(target, render(old).encode())
        else:
            path.unlink()
    shutil.rmtree(root / TARGETS, ignore_errors=True)


if __name__ == "__main__":
    try:
        convert(Path(sys.argv[1]))
    except (BaselineError, IndexError) as problem:
        sys.exit(f"{problem}\nusage: python -m perfguard.store.schema2 BASELINES")
