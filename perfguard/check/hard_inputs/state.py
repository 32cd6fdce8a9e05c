"""State besides the result: buffers and numbers that both sides of a call have by one name, and that a call changes.

Both sides begin each run with the candidate's state, so their states after it can be compared like outputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from perfguard._compat.torch_internals import storage_address, writes_of
from perfguard.check.numerics.modules import modules_of
from perfguard.check.numerics.procedure import Procedure
from perfguard.check.numerics.trial import Inputs, run_trial
from perfguard.check.numerics.truth import Reference
from perfguard.model.call import Call
from perfguard.tensors.autograd_graph import has_storage
from perfguard.tensors.snapshot import bits

Place = tuple[Any, str]  # an object, and the name of its attribute
_OWN = ("training",)  # The attribute of every module that is a mode.


def owner_of(fn: Any) -> Any:
    """The object whose state a function changes: a module, the object of a method, or an object that is called; the
    module that a function keeps, if it keeps one alone. Otherwise None."""
    modules = modules_of(fn)
    if modules:
        return modules[0] if len(modules) == 1 else None
    if isinstance(fn, functools.partial):
        return owner_of(fn.func)
    bound = getattr(fn, "__self__", fn)
    plain = isinstance(bound, type | torch.Tensor) or type(bound).__module__ == "builtins" or hasattr(bound, "__code__")
    return None if plain or not _attributes_of(bound) else bound


def _attributes_of(value: Any) -> dict[str, Any]:
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def _places(owner: Any) -> dict[str, Place]:
    """Buffers and public attributes by their names in failures."""
    found: dict[str, Place] = {}
    modules = [*owner.named_modules()] if isinstance(owner, torch.nn.Module) else [("", owner)]
    for path, holder in modules:
        prefix = f"{path}." if path else ""
        if isinstance(holder, torch.nn.Module):
            names = [name for name, _ in holder.named_buffers(recurse=False)]
            found |= {f"buffer {prefix}{name}": (holder, name) for name in names}
        for name, value in _attributes_of(holder).items():
            if isinstance(name, str) and not name.startswith("_") and name not in _OWN and _is_comparable(value):
                found[f"attribute {prefix}{name}"] = holder, name
    return found


def _is_comparable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or type(value) in (bool, int, float)


def _read(place: Place) -> torch.Tensor:
    """A copy of the value, as a tensor. A float comes of tensors in float32."""
    value = getattr(*place)
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return torch.tensor(value, dtype=torch.float32 if isinstance(value, float) else None)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(bits(a), bits(b))


class _Kept:
    """The values at some places, which can be restored into the same memory, under the same names."""

    def __init__(self, places: Mapping[str, Place]) -> None:
        self._places = places
        values = {name: getattr(*place) for name, place in places.items()}
        self._kept = {
            name: (value, value.detach().clone() if isinstance(value, torch.Tensor) else value)
            for name, value in values.items()
        }

    def put_back(self) -> None:
        for name, (holder, attribute) in self._places.items():
            value, copy = self._kept[name]
            if getattr(holder, attribute) is not value:
                setattr(holder, attribute, value)
            if isinstance(value, torch.Tensor) and not _same(value, copy):
                with torch.no_grad():
                    value.resize_(copy.shape).copy_(copy)


class Restored(Procedure):
    """A plain run that begins with the state that both sides had at first."""

    def __init__(self, state: State) -> None:
        self._state = state

    def restore(self, fn: Callable[..., Any]) -> None:
        self._state.restore(fn)


class State:
    """The state of a call's two sides.

    Attributes:
        names: the names of the compared state; empty if no call changes any state that both sides have.
    """

    def __init__(self, call: Call) -> None:
        sides = [owner_of(fn) for fn in (call.fn, call.reference)]
        self._fn = call.fn
        self._own, self._theirs = ({} if side is None else _places(side) for side in sides)
        both = [name for name in self._own if name in self._theirs and self._are_alike(name)]
        self.names = self._changed(call, both) if both and sides[0] is not sides[1] else []

    def _are_alike(self, name: str) -> bool:
        mine, theirs = (getattr(*places[name]) for places in (self._own, self._theirs))
        if isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor):
            return (
                mine is not theirs and has_storage(mine) and mine.shape == theirs.shape and mine.dtype == theirs.dtype
            )
        return type(mine) is type(theirs)

    def _changed(self, call: Call, both: list[str]) -> list[str]:
        """The names that a run writes on either side, be it what is there, without a change of shape."""
        inputs = Inputs(call)
        reference = Reference(call, inputs)
        found: dict[str, None] = {}
        with self._putting_back(both):
            before, versions = self._values(both), self._versions(both)
            _, upstream = reference.eager()
            run_trial(call.fn, inputs, upstream, seed=call.seed)
            after, written = self._values(both), self._versions(both)
            for name in both:
                changed = written[name] != versions[name] or not all(map(_same, before[name], after[name]))
                if changed and self._are_alike(name):
                    found[name] = None
        return [*found]

    def _values(self, names: list[str]) -> dict[str, list[torch.Tensor]]:
        return {name: [_read(places[name]) for places in (self._own, self._theirs)] for name in names}

    def _versions(self, names: list[str]) -> dict[str, list[int]]:
        values = {name: [getattr(*places[name]) for places in (self._own, self._theirs)] for name in names}
        return {name: [*map(writes_of, pair)] for name, pair in values.items()}

    @contextmanager
    def _putting_back(self, names: list[str]) -> Iterator[None]:
        kept = [_Kept({name: places[name] for name in names}) for places in (self._own, self._theirs)]
        try:
            yield
        finally:
            for each in kept:
                each.put_back()

    @contextmanager
    def aligned(self) -> Iterator[None]:
        """Both sides begin with the candidate's state while inside; both have their own again afterwards."""
        with self._putting_back(self.names):
            for name in self.names:
                value, (holder, attribute) = getattr(*self._own[name]), self._theirs[name]
                if isinstance(value, torch.Tensor):
                    with torch.no_grad():
                        getattr(holder, attribute).copy_(value)
                else:
                    setattr(holder, attribute, value)
            self._start = {
                side: _Kept({name: places[name] for name in self.names})
                for side, places in ((True, self._own), (False, self._theirs))
            }
            yield

    def is_among(self, results: Iterable[torch.Tensor]) -> bool:
        """Whether a result is memory of the candidate's state, as a cache that a call returns."""
        values = (getattr(*self._own[name]) for name in self.names)
        kept = {storage_address(each) for each in values if isinstance(each, torch.Tensor)}
        return any(has_storage(each) and storage_address(each) in kept for each in results)

    def read(self, fn: Callable[..., Any]) -> list[torch.Tensor]:
        """The state of the function's side after a run."""
        places = self._own if fn is self._fn else self._theirs
        return [_read(places[name]) for name in self.names]

    def restore(self, fn: Callable[..., Any]) -> None:
        """Give the function's side the state with which it began."""
        if self.names:
            self._start[fn is self._fn].put_back()
