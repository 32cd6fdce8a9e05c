"""Tries every report as its users would, and says what was caught.

    python -m benchmarks.reports [--only ID ...] [--jobs N] [--json FILE] [--keep FOLDER]
    python -m benchmarks.reports --shows      only whether each fault is there; guards nothing, and takes a minute

A report is a fresh repository. Its sound version is recorded on the lane `cpu`, a run of it has to stay quiet, and the
run after the commit with the fault has to fail. Correct ones hold the same test five times, each with random numbers of
its own, and no run may fail.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.checkouts import ROOT, Ran, commit, git, guard
from benchmarks.planting import failing
from benchmarks.reports.files import Report, reports
from benchmarks.rows import write_rows

SEEDS = 5  # of a correct report: files of one test; a file's name seeds what its tests draw
_LANE = "--perfguard-lane=cpu"
_SAID = 200  # characters of a verdict that are kept
_SETTINGS = '[tool.pytest.ini_options]\npythonpath = ["."]\n[tool.perfguard]\ntargets = ["sm_90"]\n'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="ID", help="which reports; the number of their file")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="reports at once (default: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found to FILE")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the repositories there")
    parser.add_argument("--shows", action="store_true", help="only show that each fault is one")
    given = parser.parse_args()
    try:
        chosen = reports(given.only)
    except ValueError as error:
        parser.error(str(error))
    there = [report.id for report in chosen if given.keep and (given.keep / report.id).exists()]
    if there:
        parser.error(
            f"--keep {given.keep}: holds {' '.join(there)} of an earlier run; remove them, or name another folder"
        )
    with tempfile.TemporaryDirectory(prefix="reports-") as name:
        if given.shows:
            return shown(chosen, Path(name))
        rows: list[dict[str, Any]] = []
        with ThreadPoolExecutor(given.jobs) as pool:
            for row in pool.map(lambda report: tried(report, (given.keep or Path(name)) / report.id), chosen):
                rows.append(row)
                print(line_of(row), flush=True)
                if given.json:  # after each: an interrupted benchmark keeps what it saw
                    write_rows(given.json, kept(rows))
    faults = [row for row in rows if not row["correct"]]
    accused = [row["id"] for row in rows if row["accused"]]
    caught, named = (sum(row[name] for row in faults) for name in ("caught", "named"))
    print(f"{caught} of {len(faults)} faults caught, {named} named; accused: {', '.join(accused) or 'none'}")
    return bool(accused)


def shown(chosen: list[Report], folder: Path) -> int:
    """Print why a report shows no fault, if one does not. Everything runs in this process, kernels interpreted."""
    os.environ["TRITON_INTERPRET"] = "1"
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)  # new memory holds NaN, and not what sound code left there
    problems = [f"{report.id}: {problem}" for report in chosen if (problem := report.problem(folder))]
    print("\n".join([*problems, f"{len(chosen) - len(problems)} of {len(chosen)} reports show what they say"]))
    return bool(problems)


def tried(report: Report, folder: Path) -> dict[str, Any]:
    """One report in the new folder `folder`, as a row of the JSON file."""
    runs = list(_runs(report, folder))
    sound = runs if report.is_correct else runs[:2]
    found = failures(runs[-1])
    results = runs[-1].report.results if runs[-1].report else []
    caught = not report.is_correct and bool(found) and runs[-1].status != 0
    accused = next((f"{run.status} {' '.join(failures(run)[:1])}".strip() for run in sound if run.status), "")
    return {
        "id": report.id,
        "kind": report.kind,
        "origin": report.origin,
        "shows": report.shows,
        "correct": report.is_correct,
        "caught": caught,
        "named": caught and re.search(report.words, "\n".join(found), re.IGNORECASE) is not None,
        "by": (found[0] if caught else ", ".join(sorted({each.word.value for each in results})))[:_SAID],
        "accused": accused[:_SAID],
        "seconds": [round(run.seconds, 1) for run in runs],
    }


def _runs(report: Report, folder: Path) -> Iterator[Ran]:
    """The recording, a run of the same, and one of the other version if there is one."""
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(_SETTINGS, encoding="utf-8")
    (folder / ".gitignore").write_text(".perfguard/\n__pycache__/\n", encoding="utf-8")
    own = folder / ".perfguard"
    variables = {"OMP_NUM_THREADS": "1"}  # tensors are small, and other reports may run beside this one
    _write(report, folder, bad=False)
    yield guard(folder, own, _LANE, "--perfguard-update=new", **variables)
    commit(folder)
    yield guard(folder, own, _LANE, **variables)
    if report.has_two_versions:
        _write(report, folder, bad=True)
        yield guard(folder, own, _LANE, **variables)


def _write(report: Report, folder: Path, *, bad: bool) -> None:
    for name, text in report.files(bad=bad).items():
        copies = range(SEEDS) if report.is_correct and name.startswith("test_") else ("",)
        for copy in copies:
            (folder / name.replace(".py", f"{copy}.py")).write_text(text, encoding="utf-8")
    commit(folder)


def failures(run: Ran) -> list[str]:
    """Its failing verdicts, the worst first, each as one line."""
    return [
        " ".join([each.word.value, *each.metric.split() * (each.metric not in each.reason), *each.reason.split()])
        for _, each in failing(run.report)
    ]


def line_of(row: dict[str, Any]) -> str:
    """A row as it is printed."""
    said = "caught, named" if row["named"] else "caught" if row["caught"] else "quiet" if row["correct"] else "missed"
    said = f"{said}: {row['by']}"
    if row["accused"]:
        said = f"ACCUSED {row['accused']}; {said}"
    return f"{row['id']:>2} {row['kind']}: {said} ({', '.join(f'{each:.0f}' for each in row['seconds'])} s)"


def kept(rows: list[dict[str, Any]]) -> dict[str, object]:
    """What `--json` keeps."""
    return {
        "command": shlex.join(["python", "-m", "benchmarks.reports", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "commit": git(ROOT, "rev-parse", "HEAD"),
        "device": f"{platform.processor() or platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        **{name: version(name) for name in ("torch", "triton")},
        "reports": rows,
    }


if __name__ == "__main__":
    sys.exit(main())
