"""Judge mutants and say what was said of each, ask rivals about the same, run clean suites; write the page of all that.

python -m tests.corpus                              all that can be shown on this machine
python -m tests.corpus K05 "graph break"            those of a class, or with such words in their names
python -m tests.corpus --rivals                     what rivals say of the same mutants, instead
python -m tests.corpus --clean 20                   clean suites against their own baselines, 20 times each
python -m tests.corpus --table docs/corpus.md       the page, of what was saved in tests/corpus/seen; runs nothing

With `--save FILE` what was said is kept; later files, by their names, count where they speak of the same mutant.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import torch

from benchmarks.planting import Append, Mutant, Place, failing, weigh
from perfguard.model.records import Word
from perfguard.render.words import describe_verdict
from tests.corpus.catalogue import shown
from tests.corpus.project import Corpus
from tests.corpus.rivals import ask
from tests.corpus.saved import CleanRuns, Judged, Saving, key, read_parts
from tests.corpus.table import page, rival_cells
from tests.nursery import Nursery

SEEN = Path(__file__).parent / "seen"
# Suites that take seconds; what they hold together: layers, kernels in the interpreter, times, simulated times.
CLEAN_SUITES = ("moe", "rows", "gate", "router", "timed", "simulated")
# What is the base itself has no time in question.
NOTHING = Append("kernels/fp8/reference.py", "# Nothing.")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.corpus", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="classes, or words of names; all mutants without. Of --clean: suites")
    parser.add_argument("--rivals", action="store_true", help="ask the rivals instead of perfguard")
    parser.add_argument("--clean", type=int, metavar="N", help="run clean suites N times instead")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep what was said as JSON")
    parser.add_argument("--note", default="", help="stands beside the machine on the page")
    parser.add_argument("--table", type=Path, metavar="PAGE", help="write the page of what was saved; run nothing")
    parser.add_argument("--folder", type=Path, help="keep what was recorded of clean suites here for the next time")
    parser.add_argument("--output", action="store_true", help="show what each run printed")
    given = parser.parse_args()
    if given.table is not None:
        given.table.write_text(page([*shown()], read_parts(sorted(SEEN.glob("*.json")))))
        return
    saving = Saving(given.save, machine(), given.note)
    with tempfile.TemporaryDirectory(prefix="corpus-") as folder:
        nursery = Nursery()  # of a run's fresh processes and process pairs
        runs = nursery.interpreting()
        corpus = Corpus(given.folder or Path(folder), torch.cuda.is_available(), runs.python)
        try:
            if given.clean is not None:
                run_clean(corpus, given.words or CLEAN_SUITES, given.clean, saving)
            elif given.rivals:
                ask_rivals(corpus, given.words, saving)
            else:
                judge(corpus, given.words, given.output, saving)
        finally:
            runs.close()
            nursery.close()


def machine() -> str:
    """Where and when: what times say depends on it, and rivals' most of all."""
    if torch.cuda.is_available():
        what = gpu_name()
    else:
        what = f"{os.cpu_count()} cores ({platform.machine()}) under a load of {os.getloadavg()[0]:.0f} at the start"
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "triton", "pytest-benchmark"))
    return f"{what}, {versions}, {datetime.datetime.now(datetime.UTC):%Y-%m-%d}"


def gpu_name() -> str:
    """Without opening the device, which would be a process more on it beside those that are timed."""
    try:
        line = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return subprocess.run(line, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "a GPU"


def wanted(corpus: Corpus, words: list[str]) -> list[tuple[Mutant, Place]]:
    """Those that were asked for and can be shown here."""
    return [
        (mutant, place)
        for mutant, place in shown()
        if (place == "G") == corpus.gpu
        and (not words or any(word in mutant.classes or word.lower() in mutant.name.lower() for word in words))
    ]


def judge(corpus: Corpus, words: list[str], output: bool, saving: Saving) -> None:
    """All wanted mutants, each told as soon as it is judged."""
    for mutant, place in wanted(corpus, words):
        corpus.recorded(mutant.suite)
        saving.lap()
        with corpus.project(mutant.suite, mutant.apply, mutant.given) as project:
            ran = project.run(*mutant.arguments)
        weighed = weigh(mutant.shown[place], ran)
        saving.part.judged[key(mutant, place)] = judged = Judged.of(weighed, saving.lap())
        saving.save()
        print(f"{weighed.grade.upper()}  {mutant.name} ({', '.join(mutant.classes)}) on {place}, {judged.seconds} s")
        for line in [*weighed.problems, *weighed.told, *(ran.output.splitlines() if output else [])]:
            print(f"    {line}", flush=True)


def ask_rivals(corpus: Corpus, words: list[str], saving: Saving) -> None:
    """The same mutants. The guard's own troubles are none that a rival could have, simulated times none that it could
    read, and several ranks none that it starts."""
    for mutant, place in wanted(corpus, words):
        seen = None if {"K38", "D"} & {*mutant.classes} or place == "S" else ask(corpus, mutant)
        if seen is not None:
            saving.part.rivals[key(mutant, place)] = seen
            saving.save()
            print(f"{mutant.name} on {place}: {rival_cells(mutant, place, [], seen)}", flush=True)


def run_clean(corpus: Corpus, suites: Sequence[str], times: int, saving: Saving) -> None:
    """Nothing but a comment is planted: whatever fails is a false alarm."""
    for suite in suites:
        corpus.recorded(suite)
        saving.lap()
        verdicts, alarms = [], []
        for _ in range(times):
            with corpus.project(suite, [NOTHING]) as project:
                ran = project.run()
            results = ran.report.results if ran.report is not None else []
            verdicts += [each for result in results for each in result.verdicts]
            found = failing(ran.report)
            alarms += [f"{name}: {describe_verdict(each)[0]}" for name, each in found]
            if ran.status and not found:
                alarms.append(f"exit status {ran.status}")
        unresolved = sum(each.word is Word.UNRESOLVED for each in verdicts)
        saving.part.clean[suite] = CleanRuns(times, len(verdicts), alarms, unresolved, round(saving.lap(), 1))
        saving.save()
        print(f"{suite}: {times} runs, {len(verdicts)} verdicts, {len(alarms)} alarms, {unresolved} unresolved")
        for alarm in alarms:
            print(f"    {alarm}", flush=True)


if __name__ == "__main__":
    main()
