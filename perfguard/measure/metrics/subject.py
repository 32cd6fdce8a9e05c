"""The subject of a metric: one pass of one guarded call, or one observed test."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from perfguard.measure.devices.activity import Activity, ObservedActivity
from perfguard.measure.timers.blocks import Collect, collect
from perfguard.measure.timers.timing import Workload
from perfguard.model.call import ALONE, Call, Outputs, Ranks
from perfguard.model.records import Pass, Reading
from perfguard.tensors.autograd_graph import tree_tensors

if TYPE_CHECKING:
    from perfguard.measure.binaries.call_binaries import Binaries, OnTarget
    from perfguard.measure.compiled import Trace
    from perfguard.measure.devices.device import Device


@dataclass(frozen=True)
class Observed:
    """The observations of one test.

    Attributes:
        seen: operators, memory and launches.
        compiled: compilations by torch.compile.
        generated: numbers of inductor's generated kernels and library calls.
        binaries: the launches of Triton kernels, on every target.
    """

    seen: ObservedActivity
    compiled: Trace
    generated: Mapping[str, int]
    binaries: Sequence[OnTarget] = ()


@dataclass(frozen=True)
class Subject:
    """One pass of one call, ready to be measured; or a test, which has run and cannot be repeated.

    Attributes:
        run: runs the pass once and returns its outputs (backward: the gradients). It handles grad mode, the forward
            pass before a backward one, and the upstream gradients itself.
        direction: forward, backward, or test.
        cache: state of the last-level cache when a timed call starts.
        timed: if False, only exact metrics are read.
        seconds: limit of the measuring time for each timed metric.
        skipped: timed metrics that need no reading, because they cannot have changed or are not judged.
        stored_timers: metric -> timer id in the baseline; the same timer is used again if possible.
        args: the inputs. Outputs that share memory with them are reported.
        declared_strides: of the reference's dense outputs, in order, e.g. `48,1`; empty for gradients or if unknown.
        weights: parameters of the called module, whose memory exists independently of a call.
        copies: n passes like `run`, each on its own inputs (`timers.timing.Workload`); None if they cannot be copied.
        bytes: device memory that one call touches, inputs and outputs; 0 if unknown.
        collect: collects the blocks of a timed metric; another process may direct it.
        call: the guarded call, for recorders of its launches; the same object for both passes.
        binaries: follows launches on targets; if None, kernels have no readings.
        known_code: the record's fingerprints by kernel. Unchanged kernels need no compilation.
        steps: the whole case from scratch (forward, then backward if there are gradients), on its own inputs and then
            on each entry of its walk. Empty if compilation is not checked, and in backward cases.
        settings: the compiler's settings when the test began; None if they were not read.
        rival: prepares the same pass of the rival; None if the test names no rival.
        cold: starts a process that makes the call for the first time, and returns its readings; None if not wanted.
        warm: whether earlier calls have done the compilation and autotuning.
        differentiated: whether the outputs are known to have a graph.
        put_back: restores the inputs that the call overwrites; called after each metric.
        test: the observations of a test; None for a call. Create such a subject with `of_test`.
    """

    run: Callable[[], Outputs]
    direction: Pass = "forward"
    cache: Literal["cold", "warm"] = "cold"
    timed: bool = True
    seconds: float = 1.0
    skipped: Collection[str] = ()
    stored_timers: Mapping[str, str] = field(default_factory=dict)
    args: tuple[Any, ...] = ()
    declared_strides: Sequence[str] = ()
    weights: tuple[Any, ...] = ()
    copies: Callable[[int], Sequence[Callable[[], Outputs]]] | None = None
    bytes: int = 0
    collect: Collect = collect
    call: Call | None = None
    binaries: Binaries | None = None
    known_code: Mapping[str, str] = field(default_factory=dict)
    steps: Sequence[Callable[[], object]] = ()
    settings: Mapping[str, str] | None = None
    rival: Callable[[], Workload] | None = None
    cold: Callable[[], list[Reading]] | None = None
    warm: bool = False
    differentiated: bool = False
    put_back: Callable[[], None] = lambda: None
    test: Observed | None = None
    _warmed: list[bool] = field(default_factory=list, compare=False, repr=False)
    _activity: list[Activity] = field(default_factory=list, compare=False, repr=False)
    _dispatched: list[Activity] = field(default_factory=list, compare=False, repr=False)
    _graphs: list[bool] = field(default_factory=list, compare=False, repr=False)

    @classmethod
    def of_test(
        cls, test: Observed, binaries: Binaries | None = None, known_code: Mapping[str, str] | None = None
    ) -> Subject:
        """The subject of an observed test. Without `binaries` its kernels have no readings."""

        def again() -> Outputs:
            raise RuntimeError("an observed test cannot be run again")

        return cls(
            again,
            "test",
            timed=False,
            warm=True,
            test=test,
            binaries=binaries,
            known_code=known_code or {},
            _activity=[test.seen.activity],
        )

    @property
    def ranks(self) -> Ranks:
        """The ranks that make the call."""
        return ALONE if self.call is None else self.call.ranks

    @cached_property
    def workload(self) -> Workload:
        """The workload of all timers."""
        return Workload(self.run, self.cache, self.copies, self.bytes)

    def warm_up(self, device: Device) -> None:
        """Call once, at a metric's first request, because compilation and autotuning are not the call's own work."""
        if not self.warm and not self._warmed:
            self.run()
            device.synchronize()
            self._warmed.append(True)

    def note_graph(self, outputs: Outputs) -> None:
        """Note whether these outputs of the pass have a graph, so that `has_graph` needs no call."""
        self._graphs.append(any(tensor.grad_fn is not None for tensor in tree_tensors(outputs)))

    @property
    def has_graph(self) -> bool:
        """Whether the outputs have a graph. If no call has shown this yet, one is made."""
        if not self.differentiated and not self._graphs:
            self.note_graph(self.run())
        return self.differentiated or self._graphs[0]

    def activity(self, device: Device) -> Activity:
        """Activity of one warm call, read once, because a profile often takes longer than all times of a case."""
        if not self._activity:
            self.warm_up(device)
            self._activity.append(device.activity(self.run))
        return self._activity[0]

    def dispatched(self, device: Device) -> Activity:
        """Activity of one warm call, read once from its operators, because a GPU's profile has no mesh."""
        if not device.asynchronous:
            return self.activity(device)
        if not self._dispatched:
            from perfguard.measure.devices import operators

            self._dispatched.append(operators.of_call(self.run, device.torch_device.type))
        return self._dispatched[0]


def listed(texts: Iterable[str] | Counter[str], most: int, rest: str = "more") -> str:
    """The first `most` texts, each with its count, e.g. `aten.clone at f.py:3 in g (2 times); aten.add; and 4 more`."""
    counts = texts.items() if isinstance(texts, Counter) else [(text, 1) for text in texts]
    shown = [text if count == 1 else f"{text} ({count} times)" for text, count in counts]
    hidden = [f"and {len(shown) - most} {rest}"] if len(shown) > most else []
    return "; ".join([*shown[:most], *hidden])


_LINE = re.compile(r"(?<=\.py):\d+(?= in )")


def by_place(places: Mapping[str, int], reading: Callable[..., Reading]) -> Reading:
    """A reading with a part for each place, without line numbers, which change with any edit above the line."""
    parts, lines = Counter[str](), dict[str, str]()
    for place, count in places.items():
        name = _LINE.sub("", place)
        parts[name] += count
        lines[name] = place
    return reading(value=dict(sorted(parts.items())), lines=lines)
