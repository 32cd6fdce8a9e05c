"""What a metric reads: one pass of one guarded call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from perfguard.binaries.calls import Binaries
from perfguard.call import Outputs
from perfguard.hardware.activity import Activity
from perfguard.passes import Followed
from perfguard.records import Pass, Reading
from perfguard.timing.blocks import Collect, collect
from perfguard.timing.timing import Workload

if TYPE_CHECKING:
    from perfguard.hardware.device import Device


@dataclass(frozen=True)
class Subject:
    """One pass of one call, ready to be measured.

    Attributes:
        run: does the pass once and returns its outputs (backward: the gradients). Grad mode, the forward pass
            before a backward one, and the upstream gradients are its own business.
        direction: which pass it is.
        cache: state of the last-level cache when a timed call starts.
        timed: False: only exact metrics are read.
        seconds: most measuring time for each timed metric.
        stored_timers: metric -> timer id in the baseline; the same timer is used again where possible.
        args: the inputs, so that outputs that share memory with one are told.
        weights: parameters of the module that is called; their memory is there whatever a call does.
        copies: n passes like `run`, each on inputs of its own (`perfguard.timing.timing.Workload`); None where
            they cannot be copied.
        bytes: device memory that one call touches, inputs and outputs; 0 if unknown.
        collect: how the blocks of a timed metric are gathered; another process may conduct them.
        followed: the call for whoever watches what it launches, the same object for both passes.
        binaries: who compiles for targets; None: their metrics are not read.
        steps: the whole case from scratch (forward, then backward where there are gradients) on its own inputs, then on
            each of its walk; empty where compiling is not looked at, in backward cases for one: forward ones have it.
        settings: of the compiler when the test began; None where nobody looked.
        rival: makes ready the same pass of what the candidate has to beat; None where the test names nothing.
        rivals: whether readings of methods that perfguard is compared with are wanted too (selfcheck).
        cold: starts a process that makes the call for the first time, and returns what it read; None where that is
            not wanted.
        warm: what compiling and autotuning do has been done by calls before.
        differentiated: the outputs are known to have a graph.
        put_back: makes the inputs that the call uses up what they were; done after each metric.
    """

    run: Callable[[], Outputs]
    direction: Pass = "forward"
    cache: Literal["cold", "warm"] = "cold"
    timed: bool = True
    seconds: float = 1.0
    stored_timers: Mapping[str, str] = field(default_factory=dict)
    args: tuple[Any, ...] = ()
    weights: tuple[Any, ...] = ()
    copies: Callable[[int], Sequence[Callable[[], Outputs]]] | None = None
    bytes: int = 0
    collect: Collect = collect
    followed: Followed | None = None
    binaries: Binaries | None = None
    steps: Sequence[Callable[[], object]] = ()
    settings: Mapping[str, str] | None = None
    rival: Callable[[], Workload] | None = None
    rivals: bool = False
    cold: Callable[[], list[Reading]] | None = None
    warm: bool = False
    differentiated: bool = False
    put_back: Callable[[], None] = lambda: None
    _warmed: list[bool] = field(default_factory=list, compare=False, repr=False)
    _activity: list[Activity] = field(default_factory=list, compare=False, repr=False)

    @cached_property
    def workload(self) -> Workload:
        """What timers time, the same for all of them."""
        return Workload(self.run, self.cache, self.copies, self.bytes)

    def warm_up(self, device: Device) -> None:
        """One call, the first time that a metric asks: what compiling and autotuning do is not the call's."""
        if not self.warm and not self._warmed:
            self.run()
            device.synchronize()
            self._warmed.append(True)

    def activity(self, device: Device) -> Activity:
        """What one warm call sets going, looked at once: a profile costs more than many a case's times."""
        if not self._activity:
            self.warm_up(device)
            self._activity.append(device.activity(self.run))
        return self._activity[0]
