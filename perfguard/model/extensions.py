"""Extensions of one file: modules in a folder of the package, and modules that installed distributions declare.

A module of one kind (a metric, a vendor, a timer, an output) has the same interface in both places. Inside the package
it is found because it is there. Outside, an entry point of the kind's group names it::

    [project.entry-points."perfguard.metrics"]
    output_dims = "perfguard_output_dims"
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType

from perfguard.model.errors import UsageError


@dataclass(frozen=True)
class Kind:
    """One kind of extension.

    Attributes:
        noun: what a message calls it.
        package: the folder with our own, as a module's name.
        group: of the entry points.
        needs: names that a module of this kind has. A file of the folder without them is a helper.
    """

    noun: str
    package: str
    group: str
    needs: tuple[str, ...]

    def own_names(self) -> tuple[str, ...]:
        """The files of the folder, without importing them."""
        package = importlib.import_module(self.package)
        return tuple(sorted(found.name for found in pkgutil.iter_modules(package.__path__)))

    def own(self) -> list[ModuleType]:
        """The modules of the folder."""
        found = map(self.own_module, self.own_names())
        return [module for module in found if not self._lacks(module)]

    def own_module(self, name: str) -> ModuleType:
        """The module of this file."""
        return importlib.import_module(f"{self.package}.{name}")

    def installed(self) -> tuple[Installed, ...]:
        """What distributions declare, without importing it."""
        return _installed(self)

    def modules(self) -> list[ModuleType]:
        """All modules of the kind, the package's own first.

        Raises:
            UsageError: one that was installed cannot be used.
        """
        return [*self.own(), *(each.load() for each in self.installed())]

    def _lacks(self, module: ModuleType) -> list[str]:
        return [name for name in self.needs if not hasattr(module, name)]


@dataclass(frozen=True)
class Installed:
    """One entry point of a kind's group."""

    kind: Kind
    point: metadata.EntryPoint

    @property
    def name(self) -> str:
        """The entry point's own."""
        return self.point.name

    @property
    def project(self) -> str:
        """The distribution's name, for pip."""
        return self.point.dist.name if self.point.dist else self.point.module

    @property
    def distribution(self) -> str:
        """Name and version of the distribution that declares it."""
        return f"{self.project} {self.point.dist.version}" if self.point.dist else self.project

    def load(self) -> ModuleType:
        """The module.

        Raises:
            UsageError: it cannot be imported, or lacks a name that its kind needs.
        """
        try:
            module: ModuleType = self.point.load()
        except Exception as error:  # its own code runs here, and may raise anything
            raise self._unusable(f"{type(error).__name__}: {error}") from error
        lacking = self.kind._lacks(module)
        if lacking:
            raise self._unusable(f"{self.point.value} has no {', '.join(lacking)}")
        return module

    def _unusable(self, reason: str) -> UsageError:
        return UsageError(
            f"{self.distribution}: its {self.kind.noun} {self.name!r} cannot be used ({reason}); "
            f"update it, or pip uninstall {self.project}"
        )


@functools.cache  # asked for in every case; what is installed does not change while a process runs
def _installed(kind: Kind) -> tuple[Installed, ...]:
    points = sorted(metadata.entry_points(group=kind.group), key=lambda point: (point.name, point.value))
    return tuple(Installed(kind, point) for point in points)
