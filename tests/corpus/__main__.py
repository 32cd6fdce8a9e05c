"""Judge mutants and say what was said of each; with `--table`, write the page that holds all of them, with rivals.

python -m tests.corpus                              all that can be shown on this machine
python -m tests.corpus K05 "graph break"            those of a class, or with such words in their names
python -m tests.corpus --table docs/corpus.md
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import torch

from tests.corpus.catalogue import shown
from tests.corpus.mutant import Mutant
from tests.corpus.project import Corpus
from tests.corpus.rivals import ask
from tests.corpus.table import Row, page
from tests.corpus.weighing import weigh


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.corpus", description=__doc__)
    parser.add_argument("words", nargs="*", help="classes, or words of names; all mutants without")
    parser.add_argument("--table", type=Path, help="ask the rivals too, and write this page")
    parser.add_argument("--folder", type=Path, help="keep what was recorded of clean suites here for the next time")
    parser.add_argument("--output", action="store_true", help="show what each run printed")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="corpus-") as folder:
        corpus = Corpus(given.folder or Path(folder), gpu=torch.cuda.is_available())
        try:
            judge_all(corpus, given)
        finally:
            corpus.close()


def judge_all(corpus: Corpus, given: argparse.Namespace) -> None:
    """What was asked for; the page is written after each mutant, so that whatever ends the run leaves one."""
    waiting = [each for each in shown() if (each[1] == "G") != corpus.gpu]
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "triton", "pytest-benchmark"))
    # What rivals say of times depends on what else the machine does.
    versions += f", {os.cpu_count()} cores under a load of {os.getloadavg()[0]:.0f} at the start"
    rows: list[Row] = []
    started = time.monotonic()
    for row in judge(corpus, given.words, given.output, rivals=given.table is not None):
        rows.append(row)
        if given.table is not None:
            given.table.write_text(page(rows, waiting, time.monotonic() - started, versions))


def wanted(mutant: Mutant, words: list[str]) -> bool:
    return not words or any(word in mutant.classes or word.lower() in mutant.name.lower() for word in words)


def judge(corpus: Corpus, words: list[str], output: bool, *, rivals: bool) -> Iterator[Row]:
    """All wanted mutants that can be shown here, each told as soon as it is judged."""
    for mutant, place in shown():
        if not wanted(mutant, words) or (place == "G") != corpus.gpu:
            continue
        with corpus.project(mutant.suite, mutant.apply) as project:
            ran = project.run(*mutant.arguments)
        weighed = weigh(mutant.shown[place], ran)
        # The guard's own troubles are none that a rival could have, and simulated times none that it could read.
        asked = rivals and "K38" not in mutant.classes and place != "S"
        seen = ask(corpus, mutant) if asked else None
        row = Row(mutant, place, weighed, seen)
        print(f"{weighed.grade.upper()}  {mutant.name} ({', '.join(mutant.classes)}) on {place}")
        for line in [*weighed.problems, *weighed.told, *(ran.output.splitlines() if output else [])]:
            print(f"    {line}", flush=True)
        if seen is not None:
            print(f"    rivals: {row.rivals()}", flush=True)
        yield row


if __name__ == "__main__":
    main()
