"""A finding of `perfguard doctor`."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from msgspec import Struct

#: Imports a module by its name, as `importlib.import_module` does.
Import = Callable[[str], ModuleType]


class Finding(Struct, frozen=True):
    """One checked topic. `missing` is empty if all is well; otherwise `next_step` is the remedy."""

    topic: str
    value: str = ""
    missing: str = ""
    next_step: str = ""


def tool(load: Import, name: str, next_step: str) -> Finding:
    """The finding about a module that reads a vendor's clocks."""
    try:
        module = load(name)
    except Exception as error:  # amdsmi raises various errors if its library is missing
        return Finding(name, "", f"cannot be imported: {error}; clocks and throttling may be unknown", next_step)
    return Finding(name, str(getattr(module, "__version__", "imports")))
