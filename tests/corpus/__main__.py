"""Judge mutants and say what was said of each; with `--table`, write the page that holds all of them, with rivals.

python -m tests.corpus                              all that can be shown on this machine
python -m tests.corpus K05 "graph break"            those of a class, or with such words in their names
python -m tests.corpus --table docs/corpus.md
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from tests.corpus.catalogue import shown
from tests.corpus.mutant import Mutant
from tests.corpus.project import Corpus
from tests.corpus.weighing import weigh


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.corpus", description=__doc__)
    parser.add_argument("words", nargs="*", help="classes, or words of names; all mutants without")
    parser.add_argument("--folder", type=Path, help="keep baselines here for the next time; for a clean kernels/ only")
    parser.add_argument("--output", action="store_true", help="show what each run printed")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="corpus-") as folder:
        corpus = Corpus(given.folder or Path(folder), gpu=torch.cuda.is_available())
        try:
            judge(corpus, given.words, given.output)
        finally:
            corpus.close()


def wanted(mutant: Mutant, words: list[str]) -> bool:
    return not words or any(word in mutant.classes or word.lower() in mutant.name.lower() for word in words)


def judge(corpus: Corpus, words: list[str], output: bool) -> None:
    for mutant, place in shown():
        if wanted(mutant, words) and (place == "G") == corpus.gpu:
            with corpus.project(mutant.suite, mutant.apply) as project:
                ran = project.run(*mutant.arguments)
            weighed = weigh(mutant.shown[place], ran)
            print(f"{weighed.grade.upper()}  {mutant.name} ({', '.join(mutant.classes)}) on {place}")
            for line in [*weighed.problems, *weighed.told, *(ran.output.splitlines() if output else [])]:
                print(f"    {line}", flush=True)


if __name__ == "__main__":
    main()
