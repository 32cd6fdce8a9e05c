"""Records every launch that a call makes on a target, without running any launch."""

from __future__ import annotations

import functools
import inspect
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from msgspec import Struct

from perfguard._compat.torch_compiler import uncompiled
from perfguard._compat.triton_internals import AUTOTUNER, FUNCTION, INTERPRETED, KNOBS, driven_by
from perfguard.measure.binaries.source_hash import Sources
from perfguard.measure.binaries.targets import Driver, Target
from perfguard.measure.replay import traced_step, traced_walk
from perfguard.model.call import Call
from perfguard.model.records import Pass


class Launch(Struct, frozen=True):
    """One launch of a kernel, specialised for one target as by Triton's just-in-time compiler.

    Attributes:
        module, file, function: the definition of the kernel; `function` is its qualified name.
        data: the specialisation from Triton's own hook, as JSON; Triton can compile from it.
        configuration: the number of the configuration; None for the plain call's choice.
        twin: for the plain call's choice, the number of the identical configuration.
        source: hash of the code that the kernel may depend on, without comments, paths and line numbers; empty if it is
            unknown.
        fields: names of parameters whose constants are named tuples, each with the names of the fields.
        line: the first line of the definition in `file`, including decorators; 0 if unknown.
        unspecialised: number of arguments by which the author lets nothing be specialised (`do_not_specialize`).
    """

    module: str
    file: str
    function: str
    data: str
    direction: Pass = "forward"
    configuration: int | None = None
    twin: int | None = None
    source: str = ""
    fields: tuple[tuple[str, tuple[str, ...]], ...] = ()
    line: int = 0
    unspecialised: int = 0

    @property
    def kernel(self) -> str:
        """The function's own name."""
        return self.function.rpartition(".")[2]

    @property
    def specialisation(self) -> tuple[str, ...]:
        """A key that is equal for launches of the same binary in the same pass."""
        return self.direction, self.file, self.function, self.data


_ARGUMENTS = ("constant_keys", "constant_vals", "attrs_keys", "attrs_vals")
#: The data of a launch whose specialisation is unknown.
UNKNOWN = json.dumps(
    {name: {} if name in ("signature", "options") else [] for name in ("signature", "options", *_ARGUMENTS)}
)
#: Options that a caller of a launch may set, in all versions of Triton.
_OPTIONS = (
    "num_warps", "num_stages", "num_ctas", "maxnreg", "debug", "launch_cooperative_grid", "launch_pdl", "ptx_options",
    "waves_per_eu", "matrix_instr_nonkdim", "kpack", "schedule_hint", "instruction_sched_variant",
)  # fmt: skip
#: Options that only later passes use, or that follow from the target or from Triton's installation.
_LATER = (
    "num_stages", "waves_per_eu", "matrix_instr_nonkdim", "kpack", "schedule_hint", "instruction_sched_variant",
    "arch", "backend_name", "deprecated_fp8_dot_operand_dtypes", "extern_libs", "max_num_imprecise_acc_default",
    "ptx_version", "supported_fp8_dtypes", "warp_size",
)  # fmt: skip


def options_of(launch: Launch) -> dict[str, Any]:
    """The options of a launch that a caller may set, without those that are unset."""
    options = json.loads(launch.data)["options"]
    return {name: options[name] for name in _OPTIONS if options.get(name) not in (None, 0, "", "none")}


def constants_of(launch: Launch) -> dict[str, Any]:
    """The constants of a launch by the names of their parameters."""
    data = json.loads(launch.data)
    names = list(data["signature"])
    return {
        names[path[0]]: value
        for path, value in zip(data["constant_keys"], data["constant_vals"], strict=True)
        if len(path) == 1
    }


@functools.lru_cache(1 << 12)  # Each launch is compared with all others.
def specialised(launch: Launch) -> str:
    """The specialisation without names and without parts that depend on Triton's version."""
    types, paths, values, *attributes = _arguments(launch)
    unnamed = ["function" if isinstance(each, dict) and "jit_function" in each else each for each in values]
    return json.dumps([types, paths, unnamed, *attributes, options_of(launch)])


def front_end_of(launch: Launch) -> str:
    """The input of Triton's front end for a launch, except for the target, which a kernel may query."""
    options = {name: value for name, value in json.loads(launch.data)["options"].items() if name not in _LATER}
    return json.dumps([*_arguments(launch), options])


def compiled_as(launch: Launch) -> tuple[list[Any], dict[str, Any]]:
    """The whole input of one version of Triton for a launch on one target: arguments and options."""
    options = json.loads(launch.data)["options"]
    return _arguments(launch), {name: value for name, value in options.items() if name != "extern_libs"}


def types_of(launch: Launch) -> list[Any]:
    """The types of the parameters."""
    types: list[Any] = _arguments(launch)[0]
    return types


def _arguments(launch: Launch) -> list[Any]:
    """Types, constants and attributes (divisibility), by position of the parameters."""
    data = json.loads(launch.data)
    return [list(data["signature"].values()), *(data[name] for name in _ARGUMENTS)]


class Tuning(Struct, frozen=True):
    """An autotuner that a call reached: the kernel, and the key under which it would look up its choice."""

    kernel: str
    key: str
    configurations: int
    direction: Pass = "forward"


class Recording(Struct):
    """The launches of one call on one target.

    Attributes:
        walked: the launches of its walk, including the plain call's; empty if the walk makes no launch.
        tunings: one entry for each key that tuners would see on the walk.
        problem: the reason why the call could not be followed to its end.
        passing: whether the problem is of this machine, such as a lack of time or memory, and not of the call.
        entries: names of the table's entries by configuration number; empty if no table was named.
        memory_operators: torch's operators that fill, copy or read memory in the plain call, by pass and in order.
        arguments: for the plain call's launches of kernels that cannot be interpreted, by pass and kernel and in
            order: grid, numbers, shapes and strides, as text.
        others, other_notes: parts of derived calls by pass (other_inputs.py), and reasons why their values are high.
    """

    launches: list[Launch] = []
    walked: list[Launch] = []
    tunings: list[Tuning] = []
    problem: str = ""
    passing: bool = False
    entries: list[str] = []
    memory_operators: dict[Pass, list[str]] = {}
    arguments: dict[Pass, dict[str, list[str]]] = {}
    others: dict[Pass, dict[str, int]] = {}
    other_notes: dict[Pass, list[str]] = {}


def record(call: Call, target: Target, sources: Sources, *, on_the_host: bool) -> Recording:
    """The launches of a call on a present or simulated `target`. Operators run on the host if `on_the_host`."""
    from perfguard.measure.devices.operator_kinds import MEMORY, Unwritten

    recorder = LaunchRecorder(target, sources)

    def note(operator: str) -> None:
        if operator in MEMORY:
            recorder.note_operator(operator)

    with Unwritten(on_the_host, note), recorder.recording_launches(), uncompiled(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # An earlier call has already warned.
        try:
            recorder.follow(call)
        except Exception as error:
            first_line = str(error).strip().partition("\n")[0]
            recorder.recording.problem = f"{type(error).__name__}: {first_line}"
    return recorder.recording


def _names_in(value: Any) -> tuple[str, ...]:
    """The names of a named tuple's fields; empty for other values."""
    names: tuple[str, ...] = getattr(type(value), "__match_args__", ()) if isinstance(value, tuple) else ()
    return names


class LaunchRecorder:
    """Replaces Triton's launchers within `recording_launches`, and records each launch's pass and configuration."""

    def __init__(self, target: Target, sources: Sources) -> None:
        self.target = target
        self.recording = Recording()
        self._sources = sources
        self._direction: Pass = "forward"
        self._configuration: int | None = None
        self._plain = True  # True during the plain call, without configuration and walk
        self._launches = self.recording.launches  # the list that receives launches

    @contextmanager
    def recording_launches(self) -> Iterator[None]:
        """Record launches instead of making them while inside. Autotuned kernels are recorded in all configurations."""
        function, runtime = FUNCTION.get(), KNOBS.get()
        launch = function.run

        def launched(kernel: Any, *args: Any, grid: Any, **kwargs: Any) -> Any:
            self._note_arguments(kernel, args, grid, kwargs)
            return launch(kernel, *args, grid=grid, **kwargs)

        def interpreted(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            return compiled_form(kernel).run(*args, **kwargs)

        def tuned(tuner: Any, *args: Any, **kwargs: Any) -> None:
            self._tune(tuner, args, kwargs)

        with (
            driven_by(Driver(self.target)),
            mock.patch.object(runtime, "jit_cache_hook", self._note),
            mock.patch.object(function, "run", launched),
            mock.patch.object(INTERPRETED.get(), "run", interpreted),
            mock.patch.object(AUTOTUNER.get(), "run", tuned),
            mock.patch.dict(os.environ),
            warnings.catch_warnings(),
        ):
            os.environ.pop("TRITON_INTERPRET", None)
            warnings.simplefilter("ignore")  # The user's filters may turn a compiler's warning into a failure.
            yield

    def follow(self, call: Call) -> None:
        """Follow the plain call, its walk and its configurations."""
        recording = self.recording
        traced_step(call, {}, self._enter)
        self._plain = False
        self._launches = walked = list(recording.launches)
        traced_walk(call, self._enter)
        if len(walked) > len(recording.launches):
            recording.walked = walked
        tunings = list(recording.tunings)
        self._launches = []  # Finding the configurations may launch kernels, which do not count.
        choices = call.choices
        self._launches = recording.launches
        for number, (name, chosen) in enumerate(choices):
            self._configuration = number
            recording.entries.append(name)
            traced_step(call, chosen, self._enter)
        recording.tunings = tunings

    def note_operator(self, name: str) -> None:
        """Record one of torch's operators that fills, copies or reads memory."""
        if self._plain:
            self.recording.memory_operators.setdefault(self._direction, []).append(name)

    def _enter(self, direction: Pass) -> None:
        self._direction = direction

    def _note(self, *, fn: Any, compile: Mapping[str, Any], **_: Any) -> bool:
        """Serve as Triton's hook before a compilation. The result True skips compilation and launch."""
        kernel = fn.jit_function
        # Equal specialisations have equal texts without the key. Functions may be among a kernel's constants.
        data = {name: value for name, value in json.loads(compile["specialization_data"]).items() if name != "key"}
        functions = sorted(
            {str(each.module) for each in compile["constants"].values() if isinstance(each, FUNCTION.get())}
        )
        launch = Launch(
            module=fn.module,
            file=source_file(kernel),
            function=fn.name,
            data=json.dumps(data),
            direction=self._direction,
            configuration=self._configuration,
            source=self._sources.hash_of(fn.module, *functions),
            fields=tuple(
                (kernel.arg_names[path[0]], names)
                for path, value in compile["constants"].items()
                if isinstance(path, tuple) and len(path) == 1 and (names := _names_in(value))
            ),
            line=kernel.fn.__code__.co_firstlineno,
            unspecialised=len(kernel.do_not_specialize or ()),
        )
        self._launches.append(launch)
        return True

    def _note_arguments(self, kernel: Any, args: Sequence[Any], grid: Any, kwargs: Mapping[str, Any]) -> None:
        if not self._plain or not kernel.is_gluon():  # The interpreter checks the results of other kernels.
            return
        bound = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
        text = " ".join(
            [
                f"grid={tuple(grid_of(kernel, args, grid, kwargs))}",
                *(_described(bound[name]) for name in kernel.arg_names if name in bound),
            ]
        )
        arguments = self.recording.arguments.setdefault(self._direction, {})
        arguments.setdefault(kernel.fn.__name__, []).append(text)

    def _tune(self, tuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Record the tuning, and launch every configuration that the tuner would time."""
        key, numbered = self._tuned(tuner, args, kwargs)
        self.recording.tunings.append(Tuning(tuner.base_fn.__name__, key, len(numbered), direction=self._direction))
        given = {**tuner.nargs, **kwargs}
        outer = self._configuration
        for number, configuration in numbered:
            self._configuration = number if len(tuner.configs) > 1 else outer
            if configuration.pre_hook is not None:
                configuration.pre_hook({**given, **configuration.all_kwargs()})
            tuner.fn.run(*args, **kwargs, **configuration.all_kwargs())
        self._configuration = outer
        tuner.nargs = None  # Triton's own run ends like this.

    def _tuned(self, tuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, list[tuple[int, Any]]]:
        """The key under which a tuner would look up its choice, and the configurations that it would time."""
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        given = {**tuner.nargs, **kwargs}
        key = [str(given[name]) for name in tuner.keys if name in given]
        key += [
            str(value.dtype) for name, value in given.items() if name in tuner.arg_names and hasattr(value, "dtype")
        ]
        kept = tuner.configs
        if tuner.early_config_prune:
            kept = tuner.early_config_prune(tuner.configs, tuner.nargs, **kwargs)
        return ", ".join(key), [(number, each) for number, each in enumerate(tuner.configs) if each in kept]


def grid_of(kernel: Any, args: Sequence[Any], grid: Any, kwargs: Mapping[str, Any]) -> Sequence[int]:
    """The number of programs of a launch along each axis."""
    if not callable(grid):
        return tuple(grid)
    parameters = kernel.signature.parameters.items()
    defaults = {name: each.default for name, each in parameters if each.default is not each.empty}
    return tuple(grid({**defaults, **dict(zip(kernel.arg_names, args, strict=False)), **kwargs}))


def _described(value: Any) -> str:
    """A kernel's argument without its address: a number, or shape, strides and tile of a tensor or descriptor."""
    if isinstance(value, int | float | str | None):
        return repr(value)
    parts = (getattr(value, name, None) for name in ("dtype", "shape", "strides", "block_shape"))
    stride = value.stride() if callable(getattr(value, "stride", None)) else None
    return "/".join(
        str(tuple(part) if isinstance(part, list | tuple) else part) for part in (*parts, stride) if _tells(part)
    )


def _tells(part: Any) -> bool:
    """Whether an argument has this part. A user's object is never tested for truth."""
    return part is not None and not (isinstance(part, list | tuple) and len(part) == 0)


def source_file(kernel: Any) -> str:
    """The absolute path of the file that defines a kernel."""
    return os.path.abspath(inspect.getsourcefile(kernel.fn) or "")


_forms: dict[int, tuple[Any, Any]] = {}  # id of an interpreted kernel -> the kernel and its compiled form


def compiled_form(kernel: Any) -> Any:
    """The kernel that Triton would compile for an interpreted one. It is cached, because parsing its source is slow."""
    if id(kernel) not in _forms:
        _forms[id(kernel)] = kernel, FUNCTION.get()(kernel.fn, **kernel.kwargs)
    return _forms[id(kernel)][1]
