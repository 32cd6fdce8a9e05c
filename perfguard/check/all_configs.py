"""Checks a call in every configuration, not only in the one that is chosen today."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from perfguard._compat.triton_internals import pinned, tuners_met
from perfguard.check.correctness import Checked, check
from perfguard.model.call import Call
from perfguard.model.errors import shown
from perfguard.model.mesh import in_group

# Triton's exception for a kernel that needs more than the chip has. Tuners skip such a configuration. Whether the
# binary fits is a reading of its own.
_TOO_LARGE = "OutOfResources"

CHEAP_SECONDS = 2.0  # limit for the check of the chosen configuration; within it, the others are checked by default


@dataclass(frozen=True)
class _Other:
    """A configuration that was not chosen, its call, and the context that restricts tuners to it."""

    name: str
    call: Call
    around: Callable[[], AbstractContextManager[Any]] = nullcontext


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
    problems, notes = [*checked.problems], [*checked.notes]
    for other in others:
        try:
            problems += _problems(other)
        except Exception as error:
            if type(error).__name__ != _TOO_LARGE:
                raise
            notes.append(f"{other.name} does not fit this device: {error}")
    return replace(checked, problems=problems, notes=notes)


def _named(call: Call) -> Iterator[_Other]:
    for number, (entry, chosen) in enumerate(call.choices):
        described = ", ".join([*filter(None, [entry]), *(f"{name}={shown(value)}" for name, value in chosen.items())])
        other = replace(call, kwargs={**call.kwargs, **chosen}, reference=_without(call, chosen))
        yield _Other(f"configuration {number} ({described})", other)


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
        yield _Other(f"configuration {number} ({name})", call, partial(pinned, number))


def _problems(other: _Other) -> list[str]:
    """The problems of one configuration, each with its name in front."""
    try:
        with other.around():
            wrong = check(other.call, full=False).wrong
    except Exception as error:
        error.add_note(f"perfguard: raised in {other.name}")
        raise
    return [f"{other.name}: {problem}" for problem in wrong]
