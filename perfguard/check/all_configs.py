"""Checks a call in configurations other than the one that is chosen today.

Their problems are doubts: the base commit is asked whether it has them as well.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from perfguard._compat.triton_internals import pinned, tuners_called
from perfguard.check.checked import Checked
from perfguard.check.correctness import check
from perfguard.check.hard_inputs.scalars import unchecked
from perfguard.check.hard_inputs.sizes import Kept, kept_by
from perfguard.check.hard_inputs.verdict import device_is_lost
from perfguard.model.call import Call
from perfguard.model.errors import shown
from perfguard.model.records import Doubt

# Triton's exception for a kernel that needs more than the chip has. Tuners skip such a configuration. Whether the
# binary fits is a reading of its own.
_TOO_LARGE = "OutOfResources"


@dataclass(frozen=True, eq=False)
class Other:
    """A configuration that was not chosen.

    Attributes:
        title: its number and all that it sets.
        name: a description that is equal in every process and at other commits, whose numbers may differ.
        around: the context that restricts tuners to it.
    """

    title: str
    name: str
    call: Call
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext

    def doubts(self) -> list[Doubt]:
        """Its problems, each with its title in front.

        Raises:
            DoesNotFit: it asks for more than the device has.
            Exception: whatever else it raises, with a note on its title.
        """
        try:
            with self.around():
                checked = check(self.call, full=False)
        except Exception as error:
            if type(error).__name__ == _TOO_LARGE:
                raise DoesNotFit(f"{self.title} does not fit this device: {error}") from error
            error.add_note(f"perfguard: raised in {self.title}")
            raise
        return [
            Doubt(self.name, f"{self.title}: {problem}", output, backward)
            for output, problem, backward in checked.placed()
        ]


class DoesNotFit(Exception):
    """A configuration asks for more than the device has; tuners skip such a configuration as well."""


@dataclass(frozen=True)
class Given:
    """The check of a call as it is given.

    Attributes:
        others: the further configurations to check: those in `call.configurations`, and those of every autotuned kernel
            that the call runs, except the chosen one. Empty if the call is wrong.
        seconds: processor time of the check. Wall time would let other processes decide how much else runs.
        kept: the values that the call's functions kept before the check called them; None if nothing is derived.
        unchecked: options that stay neutral.
    """

    checked: Checked
    others: Sequence[Other] = ()
    seconds: float = 0.0
    kept: Kept | None = None
    unchecked: dict[str, str] = field(default_factory=dict)


def check_given(call: Call) -> Given:
    """`check(call)`, and the other configurations of the call.

    If several ranks make the call, the check is shorter: memory beside inputs, reversed rows and gradients of other
    layouts test nothing that is special to several ranks.

    Raises:
        MeasurementError: the reference cannot be the oracle.
        Exception: any error of the candidate or the reference, with a note on the run that raised it.
    """
    if (sharded := call.ranks.check(call)) is not None:
        return Given(sharded)
    kept = None if call.hard is None else kept_by(call)
    began = time.thread_time()
    with tuners_called() as tuners:
        checked = check(call, full=not call.ranks.in_step)
    seconds = time.thread_time() - began
    others = [] if call.on_any_rank(bool(checked.wrong)) else [*_named(call), *_tuned(call, tuners)]
    return Given(checked, others, seconds, kept, unchecked(call))


def check_named(call: Call, names: Collection[str]) -> dict[str, list[Doubt]]:
    """The doubts about the configurations of these names; empty lists for those that are right. Names that the call
    does not have, and configurations that raise, are left out.

    Raises:
        Exception: the device is lost, or the call as given raises.
    """
    with tuners_called() as tuners:
        check(call, full=False)
    found = {}
    for other in [*_named(call), *_tuned(call, tuners, chosen=True)]:
        if other.name in names:
            try:
                found[other.name] = other.doubts()
            except Exception as error:
                if device_is_lost(error):
                    raise
    return found


def _named(call: Call) -> Iterator[Other]:
    for number, (entry, chosen) in enumerate(call.choices):
        described = ", ".join([*filter(None, [entry]), *(f"{name}={shown(value)}" for name, value in chosen.items())])
        other = replace(call, kwargs={**call.kwargs, **chosen}, reference=_without(call, chosen))
        # An entry of a table keeps its name where others move it to another number.
        yield Other(f"configuration {number} ({described})", entry or _stable(described), other)


def _without(call: Call, chosen: Mapping[str, Any]) -> Callable[..., Any]:
    """The reference, which takes no keyword arguments of configurations."""
    added, given = set(chosen) - set(call.kwargs), call.reference

    def reference(*args: Any, **kwargs: Any) -> Any:  # `modules_of` finds a module that it keeps.
        return given(*args, **{name: value for name, value in kwargs.items() if name not in added})

    return reference


def _tuned(call: Call, tuners: Sequence[Any], *, chosen: bool = False) -> Iterator[Other]:
    """`chosen`: also the configuration in which the call as given runs."""
    for number in range(max((len(tuner.configs) for tuner in tuners), default=0)):
        here = [tuner for tuner in tuners if number < len(tuner.configs)]
        if not chosen and len(here) == len(tuners) and all(_runs_in(tuner, number) for tuner in here):
            continue
        name = "; ".join(f"{tuner.base_fn.__name__} in {tuner.configs[number]}" for tuner in here)
        yield Other(f"configuration {number} ({name})", _stable(name), call, partial(pinned, number))


def _runs_in(tuner: Any, number: int) -> bool:
    """Whether a tuner has chosen the configuration of this number."""
    return str(getattr(tuner, "best_config", None)) == str(tuner.configs[number])


def _stable(described: str) -> str:
    """The description without addresses of functions, which differ between processes."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", described)
