"""Finds the modules of a folder (each metric, vendor and timer is one file), and waits for imports."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType


def names_in(package: str) -> tuple[str, ...]:
    """The names of a package's modules, without importing them."""
    path = importlib.import_module(package).__path__
    return tuple(sorted(found.name for found in pkgutil.iter_modules(path)))


def modules_in(package: str, *needs: str) -> list[ModuleType]:
    """The modules of a package that define the names `needs`; a module without them is a helper."""
    found = [importlib.import_module(f"{package}.{name}") for name in names_in(package)]
    return [module for module in found if all(hasattr(module, name) for name in needs)]


# -- waiting for imports -----------------------------------------------------------------------------------------------


class Awaited(importlib.abc.MetaPathFinder):
    """Waits for the first import of a top-level module, which the other finders find, and leaves them alone after it.

    Args:
        name: of the module.
        loaded: called once the module is loaded.
        found: called before it is looked for.
    """

    def __init__(self, name: str, loaded: Callable[[], object], found: Callable[[], object] = lambda: None) -> None:
        self._name, self._loaded, self._found = name, loaded, found
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        self.leave()
        self._found()
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_tell(module: ModuleType) -> None:
                load(module)
                self._loaded()

            spec.loader.exec_module = load_and_tell  # type: ignore[method-assign]
        return spec

    def leave(self) -> None:
        """Wait no longer."""
        sys.meta_path[:] = [each for each in sys.meta_path if each is not self]


@contextmanager
def when_loaded(name: str, begin: Callable[[], object]) -> Iterator[None]:
    """Call `begin` now if the module is loaded, otherwise as soon as it is while inside."""
    if name in sys.modules:
        begin()
        yield
        return
    awaited = Awaited(name, begin)
    try:
        yield
    finally:
        awaited.leave()


@contextmanager
def entered_when_loaded(name: str, context: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
    """Enter a context now if the module is loaded, otherwise as soon as it is while inside."""
    with ExitStack() as entered, when_loaded(name, lambda: entered.enter_context(context())):
        yield
