"""Refuses wrong arguments of a guarded call, each with a message that names it and what to give instead.

Only the types of the user's objects are checked: their truth, length and equality may be the user's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from perfguard.model.call import GRADIENTS, Hard, Layers, Tolerance, Work
from perfguard.model.errors import UsageError, shown

_OPTIONS: dict[str, tuple[tuple[type, ...], str]] = {
    "tolerance": ((Tolerance, type(None)), "a perfguard.Tolerance(…, reason='…')"),
    "work": ((Work, type(None)), "a perfguard.Work(bytes=…, flop=…)"),
    "kwargs": ((Mapping, type(None)), "the keyword arguments as a dict"),
    "label": ((str,), "a text"),
}
_CACHES = ("cold", "warm")


def check_options(**given: object) -> None:
    """Refuse an option of another type, or a text that is none of its choices."""
    for name, value in given.items():
        if name == "cache":
            if not isinstance(value, str) or value not in _CACHES:
                raise UsageError(f"perfguard({name}={shown(value)}): give one of {', '.join(map(repr, _CACHES))}")
        elif not isinstance(value, _OPTIONS[name][0]):
            raise UsageError(f"perfguard({name}={shown(value)}): is a {type(value).__name__}; give {_OPTIONS[name][1]}")


def hard_of(given: bool | Hard) -> Hard | None:
    """The kinds of derived inputs to leave out; None for no derived inputs."""
    if isinstance(given, Hard):
        return given
    if not isinstance(given, bool):
        raise UsageError(
            f"perfguard(hard={shown(given)}): give True, False, or perfguard.Hard(without=[…], reason='…')"
        )
    return Hard() if given else None


def layers_of(given: bool | Layers) -> bool | Layers:
    """Return `given` if it has enough points for a slope."""
    if isinstance(given, bool):
        return given
    if not isinstance(given, Mapping) or len(given) < 2 or not all(map(callable, given.values())):
        raise UsageError(
            f"perfguard(cold_start={shown(given)}): give True, or a function for each of two or more numbers of layers"
        )
    return given


def mutates_of(given: Collection[int], args: Sequence[Any]) -> tuple[int, ...]:
    """Return `given` if each entry is the position of an argument."""
    if not isinstance(given, Collection):
        raise UsageError(f"perfguard(mutates={shown(given)}): give positions of arguments, e.g. (0,) for the first one")
    for position in given:
        if not _is_position(position, args):
            raise UsageError(
                f"perfguard(mutates=…): {shown(position)} is no position of the {len(args)} arguments; "
                "write (0,) for the first argument"
            )
    return tuple(given)


def _is_position(given: object, args: Sequence[Any]) -> bool:
    return isinstance(given, int) and 0 <= given < len(args)


def clobbers_of(
    given: Collection[int | Literal["gradients"]], args: Sequence[Any]
) -> tuple[int | Literal["gradients"], ...]:
    """Return `given` if each entry is the incoming gradients or an argument of floats. Each timed call runs on the
    values that the one before left, so none of them may decide what is computed."""
    entries = given if isinstance(given, Collection) and not isinstance(given, str) else (given,)
    for entry in entries:
        if isinstance(entry, str) and entry == GRADIENTS and entries is given:
            continue
        if entries is not given or not isinstance(entry, int) or not _is_position(entry, args):
            raise UsageError(
                f"perfguard(clobbers=…): {shown(entry)} is neither a position of the {len(args)} arguments nor "
                f'"{GRADIENTS}"; write (0,) for the first argument, (0, "{GRADIENTS}") for the incoming gradients too'
            )
        if getattr(getattr(args[entry], "dtype", None), "is_floating_point", False) is not True:
            raise UsageError(f"perfguard(clobbers=…): argument {entry} is no tensor of floats; clone it in the call")
    return tuple(given)


def walk_of(steps: Sequence[Any]) -> tuple[tuple[Any, ...] | Callable[[], tuple[Any, ...]], ...]:
    """Each step as a tuple of arguments, or a function that returns one."""

    def arguments(given: Any) -> tuple[Any, ...]:
        return given if isinstance(given, tuple) else (given,)

    def prepared(step: Callable[[], Any]) -> Callable[[], tuple[Any, ...]]:
        return lambda: arguments(step())

    if not isinstance(steps, Sequence):
        raise UsageError(f"perfguard(walk=…): is a {type(steps).__name__}; give a list with one entry for each step")
    return tuple(prepared(step) if callable(step) else arguments(step) for step in steps)
