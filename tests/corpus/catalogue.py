"""All mutants: whatever modules of this package hold as MUTANTS."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import get_args

import tests.corpus
from tests.corpus.mutant import Mutant, Place

# Judged every night and by `scripts/test --whole`; for each of their classes a faster one is judged with every change.
NIGHTLY = frozenset({
    "a branch on data in the router", "the ends become a list",  # K10
    "a cast outside of the kernel",  # K11
    "a branch on data breaks the graph",  # K12
    "a launch for each group, from the first run on", "a call for each row, from the first run on",  # K15
    "every kernel a fifth slower", "another driver, and a kernel slower by a fifth",  # K16
    "an empty group's scales are left out",  # K17
    "the floor of amax is dropped",  # K19
    "three stages of a large tile",  # K31
    "routing weights are detached",  # K32
    "one tensor more is saved",  # K34
    "a temporary copy of the experts' outputs",  # K35
    "a list that grows with every call",  # K36
    "event: comments, docstrings and blank lines", "event: a reordered suite",  # K37
    "event: a renamed file of a kernel",
    "event: other code of all kernels, the same times", "event: another module, times of a CPU",
    "event: clocks lower by 5 %, other code at the same speed", "event: one wild call in forty",
    "event: one wild session among the stored",
    "guard: a missing baseline",  # K38
    "deferred work comes last in, first out",  # K43
    "the saved gradient loses the target's entry",  # K44
    # D: each starts two ranks; the layout of many is one process.
    "D1: an input left sharded before a matmul",
    "D3: the number of its layer is read in a block's forward pass",
    "D4: a checkpoint dispatches again",
    "D5: gradients of experts are left a sum",
    "D6: gradients of all weights are left a sum",
    "D8: rows are read before they have arrived",
    "D9: weights stay gathered after forward",
    "D10: a gathered weight is kept",
    "D11: the gather ahead is gone",
    "D12: each linear is sharded by itself",
    "D13: the exchange keeps the rows that it sent",
    "D18: received rows are taken by rank, not by expert",
    "D14: rows are freed that did not travel",
    "D15: a rank without rows leaves the exchange",
    "D16: a collective of one rank alone",
    "D7: all ranks have the same batch",
    "D21: rows travel in float32",
    "D24: gradients of an expert's parts are summed twice",
    "D26: a mesh is sliced for each layer",
    "event: other names of groups",
    "event: a spare barrier in the test",
})  # fmt: skip


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
