"""What perfguard promises of times, on this machine: unchanged code, real delays, worse configurations, and the price.

    python -m benchmarks.pairs --out DIR [--only PART …] [--suites SUITE …] [--minutes N] [-- PYTEST ARGUMENTS]

`delays`: a kernel of 3 µs to 10 ms in a project of its own, 0 to 10 % slower. `power`: a product of zeros, and then of
numbers, which takes the same cycles and more power. Then, suite by suite in a copy of this checkout: `record` records
it; `aa` moves every fingerprint and no speed, so that all of its times are paired, and none may be SLOWER or FASTER;
`families` plants a worse configuration of each family of kernels. `cost`: seconds of a run over all suites with 0, 5
and 50 other cases. The last three record what is not recorded yet.

DIR/pairs.json and DIR/baselines are written after each step. The same command goes on where one ended, also on another
machine of the kind. `--minutes` begins no step that would end later, as far as earlier ones of its part tell.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.checkouts import RECORDING, ROOT, Ran, commit, copied, git, guard
from benchmarks.pairs.plants import FAMILIES, plant_other_code
from benchmarks.rows import markdown
from perfguard.model.atomic_files import write_atomically
from perfguard.model.records import Report

KEPT = "pairs.json"
PARTS = ("delays", "power", "record", "aa", "families", "cost")
# The others time nothing on one GPU.
SUITES = ("quantize", "operators", "grouped_mm", "fp8_grouped_mm", "moe", "layers")
DELAYS = (3, 10, 100, 1_000, 10_000), (0, 1, 2, 3, 5, 10)  # µs, per cent
POWER = (0, 10, 30, 100)  # per cent of rows that are numbers
CHANGED = (0, 5, 50)  # cases
HEAD = (
    "step", "time", "verdicts", "fail besides", "process pairs", "effects", "half of the 95 % interval, at most",
    "off the planted effect, at most", "seconds",
)  # fmt: skip
_HERE = Path(__file__).parent
_SETTINGS = "[tool.perfguard]\npair_minutes = 60\n"
_PROJECT = f'[tool.pytest.ini_options]\npythonpath = ["."]\n{_SETTINGS}extra_seconds = 0\n'

Entry = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """The steps, and what they found so far. `suites`: name of a suite -> its file in `checkout`."""

    checkout: Path
    out: Path
    suites: dict[str, str]
    device: str
    arguments: Sequence[str]
    found: dict[str, Entry]
    delay_sizes: Sequence[Sequence[int]]

    def steps(self, parts: Sequence[str]) -> Iterator[tuple[str, Callable[[], Ran]]]:
        """All steps in their order. A machine that is lost has left whole suites."""
        if "delays" in parts:
            yield "delays", self.delays
        if "power" in parts:
            yield "power", self.power
        if set(parts) - {"delays", "power"}:
            for suite in self.suites:
                yield f"record {suite}", lambda suite=suite: self.record(suite)  # type: ignore[misc]
                if "aa" in parts:
                    yield f"aa {suite}", lambda suite=suite: self.unchanged(suite)  # type: ignore[misc]
                for name, family in FAMILIES.items():
                    if "families" in parts and family.suite == suite:
                        yield f"families {name}", lambda name=name: self.family(name)  # type: ignore[misc]
        if "cost" in parts:
            for count in CHANGED:
                yield f"cost {count}", lambda count=count: self.cost(count)  # type: ignore[misc]

    def record(self, suite: str) -> Ran:
        """All of it, as it is here and now: the suite's record may be of older code."""
        self.clean()
        ran = self._guard(suite, *RECORDING)
        if (self.checkout / "baselines").is_dir():
            shutil.copytree(self.checkout / "baselines", self.out / "baselines", dirs_exist_ok=True)
        return ran

    def unchanged(self, suite: str) -> Ran:
        self.clean()
        plant_other_code(self.checkout)
        return self._guard(suite)

    def family(self, name: str) -> Ran:
        self.clean()
        family = FAMILIES[name]
        family.edit(self.checkout)
        return self._guard(family.suite, *(["-k", family.cases] if family.cases else []))

    def cost(self, count: int) -> Ran:
        """Other code in so many cases, spread over all suites."""
        self.clean()
        covered = [pair for suite in self.suites for pair in self.found[f"record {suite}"]["covered"].items()]
        random.Random(0).shuffle(covered)
        chosen, cases = [], 0
        for nodeid, more in covered:
            if cases + more <= count:
                chosen.append(nodeid)
                cases += more
        plant_other_code(self.checkout, chosen)
        return self._guard(*self.suites)

    def delays(self) -> Ran:
        plan = self.out / "plan.json"
        sizes = (",".join(map(str, each)) for each in self.delay_sizes)
        line = [sys.executable, "-m", "benchmarks.pairs.delayed", str(plan), self.device, *sizes]
        subprocess.run(line, cwd=ROOT, check=True)
        tuned = json.loads(plan.read_text())
        short, long = (
            [{"name": each["name"], "links": each["links"] + tails * each["tail"]} for each in tuned]
            for tails in (0, 1)
        )
        return self._project("delayed", short, long)

    def power(self) -> Ran:
        zeros, numbers = ([{"name": f"{each}pct", "percent": each * many} for each in POWER] for many in (0, 1))
        return self._project("powered", zeros, numbers)

    def _project(self, name: str, before: list[Entry], after: list[Entry]) -> Ran:
        """A repository of its own, recorded by one plan and run by another. Nothing there is unchanged, so its record
        passes host times alone."""
        folder = self.checkout.with_name(name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for each in (f"{name}.py", f"test_{name}.py"):
            shutil.copy(_HERE / each, folder)
        (folder / "pyproject.toml").write_text(_PROJECT)
        (folder / ".gitignore").write_text(".perfguard/\n__pycache__/\nbaselines/\n")
        (folder / "plan.json").write_text(json.dumps(before))
        commit(folder)
        self._run(folder, *RECORDING, f"test_{name}.py")
        (folder / "plan.json").write_text(json.dumps(after))
        plant_other_code(folder)
        return self._run(folder, f"test_{name}.py")

    def clean(self) -> None:
        """The committed state, with what has been recorded."""
        git(self.checkout, "reset", "--quiet", "--hard")
        git(self.checkout, "clean", "--quiet", "-fd")
        if (self.out / "baselines").is_dir():
            shutil.copytree(self.out / "baselines", self.checkout / "baselines", dirs_exist_ok=True)

    def _guard(self, *names: str) -> Ran:
        """Suites by name, and arguments of pytest."""
        return self._run(self.checkout, *(self.suites.get(name, name) for name in names), *self.arguments)

    def _run(self, folder: Path, *arguments: str) -> Ran:
        return guard(folder, self.out / "last", f"--perfguard-device={self.device}", *arguments)


def entry(step: str, report: Report, ran: Ran) -> Entry:
    """What is kept of a step."""
    part, _, name = step.partition(" ")
    return {
        "step": step,
        "known": FAMILIES[name].known if part == "families" else "",
        "device": report.hardware.name,
        **msgspec.to_builtins(report.toolchain),
        "seconds": round(ran.seconds, 1),
        "status": ran.status,
        "problems": [pairing.problem for pairing in report.pairings if pairing.problem],
        "covered": dict(Counter(each.case.nodeid for each in report.results if any(of.covers for of in each.readings))),
        "rows": list(rows(report)),
    }


def rows(report: Report) -> Iterator[Entry]:
    """Each verdict on a gated time, and each other one that fails."""
    pairs = {
        (case.suite, case.key, each.metric): len(each.readings)
        for pairing in report.pairings for case in pairing.cases for each in case.times
    }  # fmt: skip
    for result in report.results:
        for verdict in result.verdicts:
            reading = result.reading(verdict.metric)
            if (timed := reading is not None and reading.timed and reading.gated) or verdict.word.fails:
                named = {"suite": result.case.suite, "case": result.case.key, "metric": verdict.metric}
                yield named | {
                    "word": str(verdict.word),
                    "timed": timed,
                    "us": verdict.after,
                    "effect": None if verdict.ratio is None else verdict.ratio - 1,
                    "interval": verdict.interval,
                    "pairs": pairs.get((result.case.suite, result.case.key, verdict.metric), 0),
                    "reason": "" if verdict.word in ("PASS", "UNCHANGED", "NEW") else verdict.reason,
                }


def table(entries: Iterable[Entry]) -> list[str]:
    """Markdown: a line for each step and time; of delays one for each size, and of `aa` one for all suites at last."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    seconds: dict[str, str] = {}
    failing: dict[str, Counter[str]] = {}
    for each in entries:
        step = f"{each['step']} ({each['known']})" if each["known"] else each["step"]
        truth = {delay["name"]: delay for delay in each.get("plan", ())}
        seconds[step] = f"{each['seconds']:.0f}"
        failing[step] = Counter(f"{row['word']} {row['metric']}" for row in each["rows"] if not row["timed"])
        if failing[step]:  # a line of their own
            groups[step, ""] = []
        for row in filter(lambda row: row["timed"], each["rows"]):
            delay = truth.get(row["case"].partition("[")[2].partition("]")[0])
            label = step if delay is None else f"delays {delay['percent']} %"
            planted = delay["slower"] if delay is not None and row["metric"] == "device_time_us" else None
            groups.setdefault((label, row["metric"]), []).append(row | {"planted": planted})
            if step.startswith("aa "):
                groups.setdefault(("aa, together", row["metric"]), []).append(row | {"planted": None})
    last = [key for key in groups if key[0] == "aa, together"]
    lines = []
    for label, metric in [key for key in groups if key not in last] + last:
        cells = _cells(groups[label, metric])
        besides = "" if metric else _counted(failing[label])
        lines.append([label, metric, cells[0], besides, *cells[1:], seconds.get(label, "")])
    return markdown(HEAD, lines)


def _cells(group: Sequence[Entry]) -> list[str]:
    words = _counted(Counter(row["word"] for row in group))
    paired = [row for row in group if row["pairs"] and row["interval"]]
    if not paired:
        return [words, "", "", "", ""]
    effects, counts = [row["effect"] for row in paired], [row["pairs"] for row in paired]
    spread = f", SD {100 * statistics.stdev(effects):.2f} %" if len(effects) > 1 else ""
    half = max((row["interval"][1] - row["interval"][0]) / 2 for row in paired)
    off = [abs(row["effect"] - row["planted"]) for row in paired if row["planted"] is not None]
    return [
        words,
        str(counts[0]) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}",
        f"{100 * min(effects):+.2f} to {100 * max(effects):+.2f} %{spread}",
        f"{100 * half:.2f} %",
        f"{100 * max(off):.2f} %" if off else "",
    ]


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / ".perfguard" / "pairs", metavar="DIR")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--suites", nargs="+", default=SUITES, metavar="SUITE", help=f"names (default: {SUITES})")
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="whose suites are run (default: this one's)")
    parser.add_argument("arguments", nargs="*", metavar="-- PYTEST ARGUMENTS", help="that choose cases of the suites")
    options = parser.parse_args()
    source, out = options.checkout.resolve(), options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    found = _read(out)
    origin = {
        "commit": git(source, "rev-parse", "HEAD") if (source / ".git").exists() else "",
        "date": str(date.today()),
    }
    with tempfile.TemporaryDirectory(prefix="pairs-") as folder:
        checkout = copied(Path(folder, "checkout"), source)
        settings = checkout / "pyproject.toml"
        settings.write_text(settings.read_text().replace("[tool.perfguard]\n", _SETTINGS))
        commit(checkout)
        suites = {name: file_of(name) for name in options.suites}
        bench = Bench(checkout, out, suites, options.device, options.arguments, found, DELAYS)
        started, longest = time.monotonic(), Counter[str]()
        for step, take in bench.steps(options.only):
            begun = time.monotonic()
            part = step.partition(" ")[0]
            if step in found:
                continue
            if begun - started + longest[part] > 60 * options.minutes:
                print(f"stopped before {step}: {options.minutes:g} minutes would be over")
                break
            ran = take()
            longest[part] = max(longest[part], math.ceil(time.monotonic() - begun))
            if ran.report is None:
                said = (out / "last" / "output.txt").read_text(encoding="utf-8")
                print(f"{step}: status {ran.status}, no report\n{said[-3000:]}")
                return 1
            found[step] = entry(step, ran.report, ran) | origin
            if step == "delays":
                found[step]["plan"] = json.loads((out / "plan.json").read_text())
            write_atomically(out / KEPT, msgspec.json.format(msgspec.json.encode(list(found.values())), indent=1))
            print(f"{step}: status {ran.status}, {ran.seconds:.0f} s, {len(found[step]['rows'])} verdicts", flush=True)
    print("\n".join(table(found.values())))
    return 0


def file_of(suite: str) -> str:
    return f"tests/kernels/test_{suite}_guarded.py"


def _read(out: Path) -> dict[str, Entry]:
    """The steps that are done, by name."""
    kept = out / KEPT
    return {each["step"]: each for each in json.loads(kept.read_text())} if kept.exists() else {}


if __name__ == "__main__":
    sys.exit(main())
