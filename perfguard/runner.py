"""The one pipeline for a case: correctness, then exact metrics, then times. Measures; judges nothing."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from perfguard.call import Call
from perfguard.check import Checked, check
from perfguard.config import Settings
from perfguard.metrics import read_all
from perfguard.metrics.subject import Subject
from perfguard.numerics.trial import Inputs
from perfguard.records import Accuracy, Case, CaseResult, Pass, Throughput, Verdict, Word
from perfguard.units import format_bandwidth, format_percent

if TYPE_CHECKING:
    import torch

    from perfguard.hardware.device import Device

StoredTimers = Callable[[Case], Mapping[str, str]]

# Clocks ramp up from idle for as long as 0.6 s (measuring: 1 s). Each reading of the copy ceiling is a burst of
# copies, so a number of them heats the device and leaves the ceiling measured on a warm one.
PREHEAT_US = 1e6
MOST_PREHEAT_BURSTS = 200

# A cold reading cannot beat a plain copy of the same bytes; 5 % allow for the copy's own noise.
MOST_OF_COPY = 1.05


@dataclass
class Runner:
    """Measures guarded calls on one device. `numerics` is off in fresh processes: their parent has checked."""

    device: Device
    settings: Settings
    stored_timers: StoredTimers
    numerics: bool = True
    copy_bytes_per_second: float | None = None

    def measure(self, call: Call, case: Case) -> list[CaseResult]:
        """The results of `call`: forward, and backward where an input requires grad. Wrong results are not timed.

        Raises:
            Exception: whatever the candidate or the reference raises.
        """
        self._preheat()
        started = time.monotonic()
        checked = check(call) if self.numerics else None
        results = []
        for direction in _passes(call, checked):
            result = CaseResult(
                case=msgspec.structs.replace(case, direction=direction),
                inputs=checked.inputs if checked else Inputs(call).describe(),
                accuracy=_accuracy(checked, direction),
                verdicts=_wrong(checked, direction),
                notes=checked.notes if checked else [],
            )
            if checked is None or not checked.wrong:
                result = self._read(call, result)
            results.append(msgspec.structs.replace(result, seconds=round(time.monotonic() - started, 3)))
            started = time.monotonic()
        return [result for result in results if result.readings or result.verdicts]

    def _preheat(self) -> None:
        """Once per session, before the first case: an idle device is slow, and its first readings were too."""
        if self.copy_bytes_per_second is not None or not self.device.asynchronous:
            return
        started = self.device.now_us()
        for _ in range(MOST_PREHEAT_BURSTS):
            self.copy_bytes_per_second = self.device.copy_bytes_per_second()
            if self.device.now_us() - started > PREHEAT_US:
                break

    def _read(self, call: Call, result: CaseResult) -> CaseResult:
        case = result.case
        subject = Subject(
            run=forward(call) if case.direction == "forward" else backward(call),
            direction=case.direction,
            cache=call.cache,
            timed=call.timed,
            seconds=self.settings.case_seconds,
            stored_timers=self.stored_timers(case),
            args=call.args,
        )
        readings = read_all(subject, self.device)
        return self._with_throughput(call, msgspec.structs.replace(result, readings=readings))

    def _with_throughput(self, call: Call, result: CaseResult) -> CaseResult:
        """Throughput from the declared work, and refusal of times that no memory could deliver."""
        primary = next((reading for reading in result.readings if reading.timed), None)
        work = call.work
        if primary is None or work is None or not isinstance(primary.value, int | float):
            return result
        forward_pass = result.case.direction == "forward"
        moved = work.bytes if forward_pass else work.backward_bytes
        flop = work.flop if forward_pass else work.backward_flop
        seconds = primary.value * 1e-6
        bandwidth = moved / seconds if moved else None
        fraction = bandwidth / self._copy_ceiling() if bandwidth else None
        result = msgspec.structs.replace(
            result,
            throughput=Throughput(
                bytes_per_second=bandwidth,
                flop_per_second=flop / seconds if flop else None,
                copy_fraction=fraction,
            ),
        )
        if bandwidth and fraction and fraction > MOST_OF_COPY and self.device.asynchronous and call.cache == "cold":
            refused = Verdict(
                word=Word.UNRESOLVED,
                metric=primary.metric,
                reason=f"{format_bandwidth(bandwidth)} is {format_percent(fraction)} of the copy ceiling: "
                "the cache was not cold or work= counts too many bytes; the time is refused",
            )
            kept = [reading for reading in result.readings if reading is not primary]
            result = msgspec.structs.replace(result, readings=kept, verdicts=[refused])
        return result

    def _copy_ceiling(self) -> float:
        if self.copy_bytes_per_second is None:
            self.copy_bytes_per_second = self.device.copy_bytes_per_second()
        return self.copy_bytes_per_second


def _passes(call: Call, checked: Checked | None) -> list[Pass]:
    """Forward, and backward where an input requires grad and the outputs depend on it."""
    differentiable = bool(_differentiable_outputs(call)) if checked is None else checked.backward is not None
    return ["forward", "backward"] if differentiable else ["forward"]


def _differentiable_outputs(call: Call) -> list[torch.Tensor]:
    from torch.utils import _pytree

    return [leaf for leaf in _pytree.tree_leaves(call.run()) if getattr(leaf, "requires_grad", False)]


def _accuracy(checked: Checked | None, direction: Pass) -> list[Accuracy]:
    if checked is None:
        return []
    return checked.forward if direction == "forward" else checked.backward or []


def _wrong(checked: Checked | None, direction: Pass) -> list[Verdict]:
    """One verdict for each wrong output or gradient; what no single one is to blame for goes with forward."""
    verdicts = [
        Verdict(word=Word.WRONG, metric=accuracy.output, reason=accuracy.problem)
        for accuracy in _accuracy(checked, direction)
        if accuracy.problem
    ]
    if checked is not None and direction == "forward":
        verdicts += [Verdict(word=Word.WRONG, reason=problem) for problem in checked.problems]
    return verdicts


def forward(call: Call) -> Callable[[], object]:
    """One forward call, with grad mode on where the case has gradients: saving tensors is part of it."""
    return call.run


def backward(call: Call) -> Callable[[], object]:
    """One backward pass over a graph built once: no gradient accumulation, no forward inside.

    The upstream gradients are random and seeded, in the outputs' dtypes.
    """
    import torch
    from torch.utils import _pytree

    def leaf(value: object) -> object:
        if isinstance(value, torch.Tensor) and value.requires_grad:
            return value.detach().requires_grad_()
        return value

    args, kwargs = _pytree.tree_map(leaf, (call.args, dict(call.kwargs)))
    inputs = [value for value in _pytree.tree_leaves((args, kwargs)) if getattr(value, "requires_grad", False)]
    if isinstance(call.fn, torch.nn.Module):
        inputs += [value for value in call.fn.parameters() if value.requires_grad]
    outputs = _differentiable_outputs(replace(call, args=args, kwargs=kwargs))
    generator = torch.Generator(device=outputs[0].device).manual_seed(call.seed + 1)
    upstream = [
        torch.randn(value.shape, generator=generator, device=value.device, dtype=torch.float32).to(value.dtype)
        for value in outputs
    ]

    def run() -> object:
        return torch.autograd.grad(outputs, inputs, upstream, retain_graph=True, allow_unused=True)

    return run


@contextlib.contextmanager
def seeded(seed: int, device: Device) -> Iterator[None]:
    """Seed the random numbers of Python and torch, and put the generators back afterwards."""
    import torch

    state = random.getstate()
    kind = device.torch_device.type
    devices = [] if kind == "cpu" else [device.torch_device]
    with torch.random.fork_rng(devices=devices, device_type="cuda" if kind == "cpu" else kind):
        random.seed(seed)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(state)
