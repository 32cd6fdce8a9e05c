"""Some GPUs: records the times of blocks over them, and compares what they exchange over NCCL with gloo's facts.

    python -m benchmarks.fleet [--ranks 2|4] [--out DIR] [--plants [NAME …]]

Records `baselines/<slug>-x<ranks>/` five times, and the spread of these sessions is their A/A: the same code, measured
again. Then the same tests run on the CPU over gloo. `--out` gets reports, records and fleet.json, which stdout
shows as well. `--plants`: then each of PLANTS in a copy of this checkout, over two ranks, and what fails or moves.
Where GPUs are too few all of it runs over gloo alone: a late rank and a stream without order show nothing there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.checkouts import RECORDING, ROOT, Ran, copied, guard
from benchmarks.planting import Edit, failing, planted_in
from benchmarks.rows import write_rows
from perfguard.model.records import CaseResult, Report, TimedEntry
from perfguard.store.baseline_files import Store
from tests.corpus.ranks import EXCHANGE, MUTANTS

EXACT, TIMED = (f"tests/kernels/test_parallel{name}_guarded.py" for name in ("", "_times"))
FACTS = (
    "collectives", "collective_bytes", "exchange_bytes", "messages", "unwaited", "implicit_redistributions",
)  # fmt: skip
SESSIONS = 5
CASES = {2: "two_ and not inductor", 4: "four_ and not inductor"}
# What a plant can change: the other cases exchange the same once more.
PLANTED = ("-k", f"{CASES[2]} and not compiled and not hot and not 128 and not tp2")


def of_corpus(number: str) -> tuple[Edit, ...]:
    changes = next(mutant.apply for mutant in MUTANTS if mutant.name.startswith(f"{number}:"))
    return tuple(each for each in changes if isinstance(each, Edit))


_TRAVEL = "        return wait(all_to_all(rows, received, sent, group))\n"
_EMBED = "        x_BSD = self.embedding(ids_BS)\n"
PLANTS: dict[str, tuple[Edit, ...]] = {
    "lost-prefetch": of_corpus("D11"),
    "missing-wait": of_corpus("D8"),
    "doubled-exchange": (Edit(EXCHANGE, _TRAVEL, _TRAVEL.replace("return ", "") + _TRAVEL),),
    "tenth-more-bytes": (
        Edit(
            EXCHANGE,
            _TRAVEL,
            "        wide = torch.cat((rows, rows[:, : rows.shape[1] // 10]), 1)\n"
            "        return wait(all_to_all(wide, received, sent, group))[:, : rows.shape[1]].contiguous()\n",
        ),
    ),
    "slow-rank": (  # half a millisecond
        Edit(
            "kernels/layers/block.py",
            _EMBED,
            "        if ids_BS.is_cuda and torch.distributed.is_initialized() and torch.distributed.get_rank() == 1:\n"
            f"            torch.cuda._sleep(1_000_000)\n{_EMBED}",
        ),
    ),
    "unordered-stream": (
        Edit(
            EXCHANGE,
            _TRAVEL,
            "        if rows.is_cuda:\n"
            f"            with torch.cuda.stream(torch.cuda.Stream()):\n        {_TRAVEL}{_TRAVEL}",
        ),
    ),
}


def run(folder: Path, reports: Path, *arguments: str) -> Ran:
    ran = guard(folder, reports, *arguments)
    print(f"== {reports.name}: status {ran.status}, {ran.seconds:.0f} s", flush=True)
    return ran


def planted(name: str, baselines: Path, reports: Path, *arguments: str) -> dict[str, Any]:
    """What a run says of one of PLANTS beside `baselines`: what fails, and the times that it read, by case."""
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder:
        checkout = copied(Path(folder, "checkout"))
        shutil.copytree(baselines, checkout / "baselines", dirs_exist_ok=True)
        with planted_in(checkout, *PLANTS[name]):
            ran = run(checkout, reports, *arguments)
    report = ran.report
    return {
        "plant": name,
        "status": ran.status,
        "fails": list(failures(report)),
        "read": {} if report is None else {each.case.key: shown(each) for each in report.results},
    }


def shown(result: CaseResult) -> dict[str, Any]:
    reading = result.reading("ranks_time_us")
    return {} if reading is None else {"ranks_time_us": reading.value}


def rows(report: Report, baselines: Path) -> Iterator[dict[str, Any]]:
    """Each case that was recorded: its sessions, and what one session read."""
    store = Store(baselines)
    for result in report.results:
        if any(verdict.word.fails for verdict in result.verdicts):
            continue  # what is stored is older
        file = store.load(f"{report.hardware.slug}-x{result.ranks}", result.case.suite)
        entries = file.cases[result.case.key].entries if file and result.case.key in file.cases else {}
        entry = entries.get("ranks_time_us")
        if isinstance(entry, TimedEntry):
            yield {"case": result.case.key, "timer": entry.timer, "sessions": entry.sessions, **shown(result)}


def differences(one: Sequence[CaseResult], other: Sequence[CaseResult]) -> Iterator[str]:
    """The exact facts of cases that both have, where they differ, and how many are equal."""
    known = {result.case.key: result for result in other}
    equal = 0
    for result in one:
        for metric in FACTS:
            ours = result.reading(metric)
            theirs = known[result.case.key].reading(metric) if result.case.key in known else None
            if ours is None or theirs is None:
                continue
            equal += ours.value == theirs.value
            if ours.value != theirs.value:
                yield f"{result.case.key} {metric}: {ours.value} over NCCL, {theirs.value} over gloo"
    yield f"{equal} facts are equal"


def failures(report: Report | None) -> Iterator[dict[str, str]]:
    for case, verdict in failing(report):
        yield {"word": str(verdict.word), "metric": verdict.metric, "case": case, "reason": verdict.reason}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / ".perfguard" / "fleet")
    parser.add_argument("--ranks", type=int, choices=CASES, default=2)
    parser.add_argument("--plants", nargs="*", choices=PLANTS, metavar="NAME", help=f"all, or of {', '.join(PLANTS)}")
    options = parser.parse_args()
    out: Path = options.out.resolve()
    baselines = ROOT / "baselines"
    found: dict[str, Any] = {"rows": [], "facts": [], "fails": [], "plants": []}
    on_gpus = None
    chosen = ("-k", CASES[options.ranks])
    if torch.cuda.device_count() >= options.ranks:
        for _ in range(SESSIONS):
            on_gpus = run(ROOT, out / "gpus", *RECORDING, EXACT, TIMED, *chosen).report
    if on_gpus is not None:  # kept at once: a machine that is lent may be gone before the next step
        folder = f"{on_gpus.hardware.slug}-x{options.ranks}"
        if (baselines / folder).is_dir():
            shutil.copytree(baselines / folder, out / folder, dirs_exist_ok=True)
        found["rows"] = list(rows(on_gpus, baselines))
        found["fails"] += failures(on_gpus)
        _keep(out, found)
    on_cpu = run(ROOT, out / "cpu", "--perfguard-lane=cpu", EXACT, *chosen).report
    if on_cpu is not None:
        found["facts"] = [] if on_gpus is None else list(differences(on_gpus.results, on_cpu.results))
        found["fails"] += failures(on_cpu)
    _keep(out, found)
    wanted = [] if options.plants is None else options.plants or list(PLANTS)
    where = (EXACT, TIMED) if on_gpus is not None else ("--perfguard-lane=cpu", EXACT)
    for name in wanted:
        found["plants"].append(planted(name, baselines, out / name, *where, *PLANTED))
        _keep(out, found)
        fails = Counter(f"{each['word']} {each['metric']}" for each in found["plants"][-1]["fails"])
        print("   " + (", ".join(f"{count} {words}" for words, count in fails.items()) or "nothing fails"), flush=True)
    print(json.dumps(found, indent=1))


def _keep(out: Path, found: dict[str, Any]) -> None:
    write_rows(out / "fleet.json", found)


if __name__ == "__main__":
    main()
