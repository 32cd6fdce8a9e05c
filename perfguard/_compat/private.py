"""A private name of another project: its module, its use, and the error for a version that lacks it.

Every such name is declared in this folder, in the file of its project. `tests/_compat` looks for each in the installed
version, and `tests/test_architecture.py` forbids private names in other rooms.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from perfguard.model.errors import PerfguardError


class PrivateNameGone(PerfguardError, ImportError):
    """The installed version of a project does not have a private name."""


@dataclass(frozen=True)
class Private:
    """A private name of a module.

    Attributes:
        module: the defining module, which is imported by `get`, not before.
        name: the name in the module, with dots before attributes; "" means the module itself.
        used_for: a phrase that completes "used for …".
    """

    module: str
    name: str
    used_for: str

    def get(self) -> Any:
        """Import the module and return the object.

        Raises:
            ImportError: the project is not installed.
            PrivateNameGone: the project does not have the name.
        """
        importlib.import_module(self.project)
        try:
            return self._of(importlib.import_module(self.module))
        except (ImportError, AttributeError) as error:
            raise PrivateNameGone(self.missing_error()) from error

    def loaded(self) -> Any:
        """The object; None if its module is not imported yet, or lacks it."""
        try:
            return self._of(sys.modules[self.module])
        except (KeyError, AttributeError):
            return None

    def exists(self) -> bool:
        """Whether the installed version has the name."""
        try:
            self.get()
        except PrivateNameGone:
            return False
        return True

    def set(self, value: Any) -> Any:
        """Replace the object by `value`; returns the previous object."""
        owner, _, name = self.name.rpartition(".")
        owner_object = Private(self.module, owner, self.used_for).get()
        before = vars(owner_object)[name]
        setattr(owner_object, name, value)
        return before

    @property
    def project(self) -> str:
        """The module's top-level package."""
        return self.module.partition(".")[0]

    def missing_error(self) -> str:
        """The error for a version without the name."""
        name = f"{self.module}.{self.name}".rstrip(".")
        return (
            f"{version_of(self.project)} no longer has {name}, used for {self.used_for}; "
            "install a version that perfguard was tried with (its pyproject.toml), or update perfguard"
        )

    def _of(self, module: Any) -> Any:
        value = module
        for part in filter(None, self.name.split(".")):
            value = getattr(value, part)
        return value


def privates(module: str, used_for: str, names: str) -> tuple[Private, ...]:
    """Declare several names, separated by spaces, of one module and for one use."""
    return tuple(Private(module, name, used_for) for name in names.split())


def version_of(project: str) -> str:
    """Name and installed version of a project, e.g. `torch 2.13.0`."""
    distribution = {"_pytest": "pytest", "xdist": "pytest-xdist", "pytest_benchmark": "pytest-benchmark"}.get(project)
    name = distribution or project
    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:
        return name
