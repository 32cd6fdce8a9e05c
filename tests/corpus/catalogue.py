"""All mutants: whatever modules of this package hold as MUTANTS."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import get_args

import tests.corpus
from benchmarks.planting import Mutant, Place

# Judged with every change: one of each class, of those that are judged soonest, but for the classes `ELSEWHERE`. All
# others are judged every night, and by `scripts/test --whole`: each metric, each check and what a run says of them are
# tested in rooms of their own.
DAILY = frozenset({
    "one width with half the warps",  # K01
    "one width bucket with an eighth of the tile",  # K02
    "the smallest size alone takes half as long again",  # K03; a CPU tells it by a minute of pairs
    "an extra pass over the incoming gradient",  # K04
    "the grouped product falls back to a loop",  # K05
    "a row of the table is gone",  # K07
    "a layer returns float32",  # K08
    "50 µs of Python in the wrapper",  # K09
    "a transposed view is made contiguous",  # K11
    "twelve configurations are timed at the first call",  # K14
    "a tuned configuration at 0.86 of the default's speed",  # K15
    "half of the kernels slower by a tenth, half faster",  # K16
    "no weight gradient for a group without rows",  # K17
    "whole vectors of rows are read, the next group's too",  # K18, K30
    "scales are rounded up, and nothing clamps",  # K19
    "saturates from 256",  # K20
    "bytes of e4m3fn read as e4m3fnuz",  # K21
    "the last group takes the scales of the one before",  # K22
    "sums of chunks are rounded to bf16 each time",  # K23, K43
    "row times stride in 32 bits",  # K24
    "a partial sum is read before it is there",  # K25
    "one configuration is wrong, in its gradients alone",  # K26
    "tuning runs a kernel that works in place",  # K27
    "the incoming gradient is indexed as if it were contiguous",  # K28
    "scales are stored by lane, not by column",  # K29, K46
    "32 warps where a wave has 64 lanes",  # K31
    "one gradient too few",  # K32
    "a module keeps its last output",  # K36
    "event: nothing at all", "event: thermal slowdown of all, nothing else",  # K37, on a CPU and by the clock
    "guard: a truncated baseline",  # K38
    "the token count is part of the tuning key",  # K41
    "rows are freed that are the tokens themselves",  # K42
    "the kernel loses the target's entry",  # K44
    "a tile as high as the mean group, and one of them",  # K45
    "compiled, the experts count in fp8",  # K49
    "the gate's gradient is divided by the tokens",  # K50
    "D20: an expert of its own on four ranks",  # of many ranks in one process; others start two
})  # fmt: skip

# Classes of which a smaller mutant is read and judged with every change, in files below tests/measure.
ELSEWHERE = {
    **dict.fromkeys(("K12", "K39", "K40", "K48"), "metrics/test_compilation.py"),
    **dict.fromkeys(("K10", "K34", "K35"), "metrics/test_counts.py"),
    **dict.fromkeys(("K06", "K13", "K47"), "binaries/test_comparison.py"),
}


def all_mutants() -> list[Mutant]:
    """By file, then as they stand there.

    Raises:
        ValueError: two of one name.
    """
    found: dict[str, Mutant] = {}
    for module in pkgutil.iter_modules(tests.corpus.__path__):
        if module.ispkg or module.name.startswith(("test_", "conftest", "__")):
            continue
        for mutant in getattr(importlib.import_module(f"tests.corpus.{module.name}"), "MUTANTS", ()):
            if mutant.name in found:
                raise ValueError(f"{mutant.name}: two mutants have this name; give one another")
            found[mutant.name] = mutant
    return list(found.values())


def shown() -> Iterator[tuple[Mutant, Place]]:
    """Every mutant in every place where it can be shown."""
    for mutant in all_mutants():
        for place in get_args(Place):
            if place in mutant.shown:
                yield mutant, place
