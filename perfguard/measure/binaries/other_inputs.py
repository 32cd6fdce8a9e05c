"""The work of a call on derived inputs, which is followed on a target like the call itself, and not run.

Sizes and layouts that no test has may cause copies and compilations. Their choice depends on no budget and no rotation,
so two runs follow the same inputs.
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch

from perfguard._compat.torch_compiler import uncompiled
from perfguard._compat.torch_internals import storage_address
from perfguard.measure.binaries.launch_recorder import LaunchRecorder, Recording, grid_of
from perfguard.measure.binaries.source_hash import Sources
from perfguard.measure.binaries.targets import Target
from perfguard.measure.devices.operator_kinds import COPIES, READS, Unwritten
from perfguard.measure.replay import buffers_kept, traced_step, weights
from perfguard.model.call import Call, OtherCall
from perfguard.model.records import Pass
from perfguard.tensors.autograd_graph import has_storage, tree_tensors

_MOST_SECONDS = 20.0  # A case that needs more processor time is slow outside of operators and launches.
# Operators and launches of one derived call. A loop over chunks takes thousands at a large size, which would
# show nothing new; the largest layer of kernels/ takes 320. A number, unlike seconds, ends each run at the same place.
_MOST_STEPS = 500
_MOST_STEPS_OF_CASE = 5000  # Fifteen derived calls of such a layer.
_MOST_NAMED = 3  # A note names so many values of a constant.
AXIS_LIMIT = 65_535  # NVIDIA's GPUs allow so many programs along the second and third axis of a grid.


def follow_others(call: Call, target: Target | None, sources: Sources, into: Recording, *, on_the_host: bool) -> None:
    """Add the counts of the derived calls of `call` to `into`. Calls that refuse their input count nothing. `target` is
    None if no Triton kernel can be launched."""
    recorder = _DerivedRecorder(target, sources) if target is not None else None
    runs_by_pass: dict[Pass, list[_DerivedRun]] = {}
    deadline = time.thread_time() + _MOST_SECONDS
    accepted, steps = set[str](), 0
    with ExitStack() as stack:
        if recorder is not None:
            stack.enter_context(recorder.recording_launches())
        stack.enter_context(uncompiled())
        stack.enter_context(buffers_kept(call))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        for other in call.others:
            in_time = steps < _MOST_STEPS_OF_CASE and time.thread_time() < deadline
            if in_time and not (other.instead and other.name in accepted):
                passes = _followed(other, recorder, on_the_host)
                steps += sum(run.steps for run in passes.values())
                accepted.update([other.name] * bool(passes and not other.instead))
                for direction, run in passes.items():
                    runs_by_pass.setdefault(direction, []).append(run)
    for direction, derived in runs_by_pass.items():
        into.others[direction] = _parts(derived)
        into.other_notes[direction] = _notes(derived)


@dataclass(frozen=True)
class _DerivedLaunch:
    """One launch. `code` distinguishes specialisations; `numbers` are the arguments by which Triton may specialise."""

    kernel: str
    code: str
    constants: Sequence[tuple[str, str]]
    grid: Sequence[int]
    numbers: Sequence[tuple[str, int]]


@dataclass
class _DerivedRun:
    """The launches, operators and tunings of one derived call in one pass."""

    other: OtherCall
    launches: list[_DerivedLaunch] = field(default_factory=list)
    operators: Counter[str] = field(default_factory=Counter)
    tunings: set[tuple[str, str]] = field(default_factory=set)
    saved_bytes: int = 0  # What is kept for the backward pass, without parameters.
    is_refused: bool = False
    has_other_dtypes: bool = False  # than the reference's results

    def number_of(self, kinds: Iterable[str]) -> int:
        return sum(self.operators[each] for each in kinds)

    @property
    def steps(self) -> int:
        return self.operators.total() + len(self.launches)

    def end_at_limit(self) -> None:
        """Raise `_LimitReached` once the run has as many operators and launches as are counted."""
        if self.steps >= _MOST_STEPS:
            raise _LimitReached


class _LimitReached(BaseException):
    """Ends a derived call, whose counts so far are kept. An `except Exception` in user code does not stop it."""


def _followed(other: OtherCall, recorder: _DerivedRecorder | None, on_the_host: bool) -> dict[Pass, _DerivedRun]:
    """The runs of a derived call by pass; empty if the call refuses its input, unless that is counted."""
    by_pass: dict[Pass, _DerivedRun] = {}
    current: list[_DerivedRun] = []

    def enter(direction: Pass) -> None:
        current[:] = [by_pass.setdefault(direction, _DerivedRun(other))]
        if recorder is not None:
            recorder.run = current[0]

    def note(operator: str) -> None:
        for run in current:
            run.operators[operator] += 1
            run.end_at_limit()

    try:
        with Unwritten(on_the_host, note), suppress(_LimitReached):  # The inputs are made on the host, too.
            call = other.make()
            kept: dict[int, torch.Tensor] = {}
            hooks = torch.autograd.graph.saved_tensors_hooks(lambda each: _kept(each, kept), lambda each: each)
            with hooks if other.kind == "gradients" else nullcontext():  # torch.func raises under hooks.
                traced_step(call, {}, enter)
    except Exception as error:
        if not other.refusals or not current or not _is_of_operators(error) or not _is_taken(other, on_the_host):
            return {}
        current[0].is_refused = True
        return by_pass
    if current:
        free = {storage_address(each) for each in weights(call)}  # Parameters exist independently of a call.
        by_pass["forward"].saved_bytes = sum(
            each.untyped_storage().nbytes() for address, each in kept.items() if address not in free
        )
    if other.kind == "dtypes" and (forward := by_pass.get("forward")) is not None:
        if recorder is not None:
            recorder.run = _DerivedRun(other)  # These launches were counted.
        forward.has_other_dtypes = _returns_other_dtypes(other, on_the_host)
    return by_pass


def _kept(tensor: torch.Tensor, by_storage: dict[int, torch.Tensor]) -> torch.Tensor:
    """The tensor that a graph keeps in place of `tensor`, which is noted, and so keeps its address."""
    if has_storage(tensor):
        by_storage.setdefault(storage_address(tensor), tensor.detach())
    return tensor.detach()  # A graph that held its own output would be a cycle.


def _returns_other_dtypes(other: OtherCall, on_the_host: bool) -> bool:
    with suppress(Exception, _LimitReached), Unwritten(on_the_host):
        call = other.make()
        results = (fn(*call.args, **call.kwargs) for fn in (call.fn, call.reference))
        mine, theirs = ([each.dtype for each in tree_tensors(result)] for result in results)
        return len(mine) == len(theirs) and mine != theirs
    return False


def _is_of_operators(error: Exception) -> bool:
    """Whether torch's operators refused the input. A kernel's own checks raise subclasses or other errors, which are
    decisions of its author."""
    return type(error) is RuntimeError


def _is_taken(other: OtherCall, on_the_host: bool) -> bool:
    """Whether the reference takes the input, which is then in the domain."""
    with suppress(Exception), Unwritten(on_the_host):
        call = other.make()
        call.reference(*call.args, **call.kwargs)
        return True
    return False


class _DerivedRecorder(LaunchRecorder):
    """Adds launches to `run`; those of autotuned kernels in the first configuration after pruning."""

    run: _DerivedRun
    _grid: Sequence[int] = ()
    _numbers: Sequence[tuple[str, int]] = ()

    def _note(self, *, fn: Any, compile: Mapping[str, Any], **_: Any) -> bool:
        data = json.loads(compile["specialization_data"])
        code_parts = [data[key] for key in ("signature", "attrs_keys", "attrs_vals", "constant_keys", "constant_vals")]
        names = fn.jit_function.arg_names
        constants = [
            (names[path[0]], str(value))
            for path, value in compile["constants"].items()
            if isinstance(path, tuple) and len(path) == 1 and isinstance(value, int | float | str)
        ]
        code = hashlib.sha256(json.dumps(code_parts).encode()).hexdigest()
        kernel = fn.name.rpartition(".")[2]
        self.run.launches.append(_DerivedLaunch(kernel, code, constants, self._grid, self._numbers))
        self.run.end_at_limit()
        return True

    def _note_arguments(self, kernel: Any, args: Sequence[Any], grid: Any, kwargs: Mapping[str, Any]) -> None:
        self._grid = grid_of(kernel, args, grid, kwargs)
        free = {each.name for each in kernel.params if not each.is_constexpr and not each.do_not_specialize}
        given = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
        self._numbers = [(name, value) for name, value in given.items() if name in free and type(value) is int]

    def _tune(self, tuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        key, configurations = self._tuned(tuner, args, kwargs)
        self.run.tunings.add((tuner.base_fn.__name__, key))
        for _, configuration in configurations[:1]:
            tuner.fn.run(*args, **kwargs, **configuration.all_kwargs())
        tuner.nargs = None


# -- parts -------------------------------------------------------------------------------------------------------------


def _parts(derived: Sequence[_DerivedRun]) -> dict[str, int]:
    refused = [run for run in derived if run.other.refusals]
    counted = {run.other.refusals: 0 for run in refused}
    for run in refused:
        counted[run.other.refusals] += run.is_refused
    typed = [run.has_other_dtypes for run in derived if run.other.kind == "dtypes" and not run.is_refused]
    derived = [run for run in derived if not run.is_refused]
    layouts = [run for run in derived if run.other.kind == "layouts"]
    compiled = [run for _, runs in _by_size(derived) for run in _without_largest(runs)]
    parts = {f"copies ({run.other.name})": run.number_of(COPIES) for run in layouts}
    if compiled:
        parts["copies (sizes)"] = max(run.number_of(COPIES) for run in compiled)
    for name, runs in (("layouts", layouts), ("sizes", compiled)):
        if runs:
            parts[f"host reads ({name})"] = max(run.number_of(READS) for run in runs)
            if most := max(len(run.launches) for run in runs):
                parts[f"launches ({name})"] = most
    for run in derived:
        if run.other.kind in ("gradients", "modes"):
            parts[f"operators ({run.other.name})"] = run.steps
        if run.other.kind == "gradients" and run.saved_bytes:
            parts[f"saved bytes ({run.other.name})"] = run.saved_bytes
    parts |= {f"refused ({name})": number for name, number in counted.items()}
    parts |= {"other dtypes": sum(typed)} if typed else {}
    for name, runs in _by_size(derived):
        parts |= {part: len(codes) for part, codes in _compilations(name, _without_largest(runs)).items()}
        parts |= _specialised(name, _without_largest(runs))
        parts |= {part: int(axis > 0) for part, axis in _axes(name, runs).items()}
    return parts


def _by_size(derived: Sequence[_DerivedRun]) -> Iterator[tuple[str, list[_DerivedRun]]]:
    """The runs with a changed size, by the size's name and in ascending order, if there are at least two."""
    sized = sorted((run for run in derived if run.other.size), key=lambda run: (run.other.name, run.other.size))
    for name, runs in groupby(sized, lambda run: run.other.name):
        several = [*runs]
        if len(several) > 1:
            yield name, several


def _without_largest(runs: list[_DerivedRun]) -> list[_DerivedRun]:
    """The runs without the largest size, which shows how grids grow, but may need other tiles than the rest."""
    return runs[:-1] if len(runs) > 2 else runs


def _compilations(name: str, runs: Sequence[_DerivedRun]) -> dict[str, set[str]]:
    """The specialisations and the tuning keys of each kernel, by part."""
    codes: dict[str, set[str]] = {}
    for run in runs:
        for launch in run.launches:
            codes.setdefault(f"compilations of {launch.kernel} ({name})", set()).add(launch.code)
        for kernel, key in run.tunings:
            codes.setdefault(f"tunings of {kernel} ({name})", set()).add(key)
    return codes


def _specialised(name: str, runs: Sequence[_DerivedRun]) -> dict[str, int]:
    """Whether a number that changes with the size is one by which Triton specialises each kernel, by part: then 1, and
    multiples of 16, are compiled anew, which the followed sizes avoid."""
    by_kernel: dict[str, list[set[tuple[str, int]]]] = {}
    for run in runs:
        numbers: dict[str, set[tuple[str, int]]] = {}
        for launch in run.launches:
            numbers.setdefault(launch.kernel, set()).update(launch.numbers)
        for kernel, own in numbers.items():
            by_kernel.setdefault(kernel, []).append(own)
    return {
        f"specialised sizes of {kernel} ({name})": int(any(own != several[0] for own in several))
        for kernel, several in by_kernel.items()
    }


def _axes(name: str, runs: Sequence[_DerivedRun]) -> dict[str, int]:
    """The last axis along which each kernel's grid grows, by part. A grid that does not grow has no part."""
    axes = {}
    least, most = _grids(runs[0]), _grids(runs[-1])
    for kernel in most.keys() & least.keys():
        grown = [axis for axis, (few, many) in enumerate(zip(least[kernel], most[kernel], strict=True)) if many > few]
        if grown:
            axes[f"grid axis of {kernel} ({name})"] = grown[-1]
    return dict(sorted(axes.items()))


def _grids(run: _DerivedRun) -> dict[str, list[int]]:
    """The highest number of programs along each axis, by kernel."""
    grids: dict[str, list[int]] = {}
    for launch in run.launches:
        grid = [*launch.grid, 1, 1, 1][:3]
        grids[launch.kernel] = [max(pair) for pair in zip(grids.get(launch.kernel, grid), grid, strict=True)]
    return grids


def _notes(derived: Sequence[_DerivedRun]) -> list[str]:
    """Notes on kernels that are compiled again, and on grids that may end."""
    notes = [f"{run.other.name} is refused" for run in derived if run.is_refused]
    notes += [f"{run.other.name}: results have other dtypes" for run in derived if run.has_other_dtypes]
    for name, runs in _by_size(derived):
        launches = [launch for run in _without_largest(runs) for launch in run.launches]
        for kernel in dict.fromkeys(launch.kernel for launch in launches):
            values: dict[str, dict[str, None]] = {}
            for constant, value in (each for one in launches if one.kernel == kernel for each in one.constants):
                values.setdefault(constant, {})[value] = None
            for constant, different in values.items():
                if len(different) > 1:
                    named = ", ".join([*different][:_MOST_NAMED])
                    notes.append(
                        f"{kernel} is compiled anew for each size of {name}: its constant {constant} is {named}"
                    )
        notes += [
            f"{part} is {axis}: it ends at {AXIS_LIMIT:,} programs" for part, axis in _axes(name, runs).items() if axis
        ]
    return notes
