"""Finds the modules of a folder: each metric, vendor, timer and output is one file."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def names_in(package: str) -> tuple[str, ...]:
    """The names of a package's modules, without importing them."""
    path = importlib.import_module(package).__path__
    return tuple(sorted(found.name for found in pkgutil.iter_modules(path)))


def modules_in(package: str, *needs: str) -> list[ModuleType]:
    """The modules of a package that define the names `needs`; a module without them is a helper."""
    found = [importlib.import_module(f"{package}.{name}") for name in names_in(package)]
    return [module for module in found if all(hasattr(module, name) for name in needs)]
