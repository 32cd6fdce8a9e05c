"""All mutants: whatever modules of this package hold as MUTANTS."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import get_args

import tests.corpus
from tests.corpus.mutant import Mutant, Place


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
