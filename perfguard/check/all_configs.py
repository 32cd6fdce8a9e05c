"""Checks a call in every configuration, not only in the one that is chosen today.

Problems of the others are doubts: the base commit is asked whether it has them, too.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from msgspec.structs import replace as replaced

from perfguard._compat.triton_internals import pinned, tuners_met
from perfguard.check.checked import Checked
from perfguard.check.correctness import check
from perfguard.check.hard_inputs.verdict import device_is_lost
from perfguard.model.call import Call
from perfguard.model.errors import shown
from perfguard.model.mesh import in_group
from perfguard.model.records import Doubt

# Triton's exception for a kernel that needs more than the chip has. Tuners skip such a configuration. Whether the
# binary fits is a reading of its own.
_TOO_LARGE = "OutOfResources"

CHEAP_SECONDS = 2.0  # limit for the check of the chosen configuration; within it, the others are checked by default


@dataclass(frozen=True)
class _Other:
    """A configuration that was not chosen.

    Attributes:
        title: its number and all that it sets.
        name: what is the same in every process and at other commits, where numbers may be others.
        around: the context that restricts tuners to it.
    """

    title: str
    name: str
    call: Call
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


def check_configurations(call: Call) -> Checked:
    """`check(call)` and, if that is right, the same for every other configuration, gradients included.

    Other configurations are those in `call.configurations` and those of every autotuned kernel that the call runs. If
    the first check was not cheap and `call.every` is not set, they are skipped with a note. Each configuration that
    does not fit the device has a note, too. Where several ranks make the call, the check is shorter: memory beside
    inputs, reversed rows and gradients of other layouts say nothing of what is special to several ranks.

    In a process group a module is one of several ranks' and is checked as such (`check_sharded`). A function that
    several ranks call is checked on each rank.

    Raises:
        MeasurementError: the reference cannot be the oracle.
        Exception: what the candidate or the reference raises, with a note on the run that raised it.
    """
    if in_group() and (call.together is None or isinstance(call.fn, torch.nn.Module)):
        from perfguard.check.sharded import check_sharded

        return check_sharded(call)
    started = time.thread_time()  # CPU time, so that other processes do not decide what is checked
    with tuners_met() as tuners:
        checked = check(call, full=call.together is None)
    seconds = time.thread_time() - started
    if call.agreed(bool(checked.wrong)):
        return checked
    others = [*_named(call), *_tuned(call, tuners)]
    if others and call.agreed(seconds > CHEAP_SECONDS) and not call.every:
        note = f"{len(others)} configurations not checked, as one takes {seconds:.1f} s; check them with: "
        return replace(checked, notes=[*checked.notes, f"{note}--perfguard-all-configs"])
    doubts, notes = [], [*checked.notes]
    for other in others:
        try:
            doubts += [replaced(doubt, inputs=checked.inputs) for doubt in _doubts(other)]
        except Exception as error:
            if type(error).__name__ != _TOO_LARGE:
                raise
            notes.append(f"{other.title} does not fit this device: {error}")
    return replace(checked, doubts=doubts, notes=notes)


def check_named(call: Call, names: Collection[str]) -> dict[str, list[Doubt]]:
    """The doubts about the configurations of these names; empty lists for those that are right. Names that the call
    does not have, and configurations that raise, are left out.

    Raises:
        Exception: the device is lost, or the call as given raises.
    """
    with tuners_met() as tuners:
        check(call, full=False)
    found = {}
    for other in [*_named(call), *_tuned(call, tuners)]:
        if other.name in names:
            try:
                found[other.name] = _doubts(other)
            except Exception as error:
                if device_is_lost(error):
                    raise
    return found


def _named(call: Call) -> Iterator[_Other]:
    for number, (entry, chosen) in enumerate(call.choices):
        described = ", ".join([*filter(None, [entry]), *(f"{name}={shown(value)}" for name, value in chosen.items())])
        other = replace(call, kwargs={**call.kwargs, **chosen}, reference=_without(call, chosen))
        # An entry of a table keeps its name where others move it to another number.
        yield _Other(f"configuration {number} ({described})", entry or _stable(described), other)


def _without(call: Call, chosen: Mapping[str, Any]) -> Callable[..., Any]:
    """The reference, which takes no keyword arguments of configurations."""
    added = set(chosen) - set(call.kwargs)

    def reference(*args: Any, **kwargs: Any) -> Any:
        return call.reference(*args, **{name: value for name, value in kwargs.items() if name not in added})

    return reference


def _tuned(call: Call, tuners: Sequence[Any]) -> Iterator[_Other]:
    for number in range(max((len(tuner.configs) for tuner in tuners), default=0)):
        here = [tuner for tuner in tuners if number < len(tuner.configs)]
        name = "; ".join(f"{tuner.base_fn.__name__} in {tuner.configs[number]}" for tuner in here)
        yield _Other(f"configuration {number} ({name})", _stable(name), call, partial(pinned, number))


def _stable(described: str) -> str:
    """Without the addresses of functions."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", described)


def _doubts(other: _Other) -> list[Doubt]:
    """The problems of one configuration, each with its title in front."""
    try:
        with other.around():
            checked = check(other.call, full=False)
    except Exception as error:
        error.add_note(f"perfguard: raised in {other.title}")
        raise
    return [
        Doubt(other.name, f"{other.title}: {problem}", output, backward)
        for output, problem, backward in checked.placed()
    ]
