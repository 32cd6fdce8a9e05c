"""Counts of launches and memory: for each a small harm that it turns from PASS to CHANGED, in words to act on."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from perfguard.judge.case_verdicts import judge_case
from perfguard.judge.exact import because
from perfguard.judge.lane import Lane
from perfguard.measure.devices.device import Device
from perfguard.measure.devices.vendors.cpu import CpuDevice
from perfguard.measure.metrics import read_exact
from perfguard.measure.metrics.subject import Subject
from perfguard.model.records import Baseline, Case, CaseBaseline, CaseResult, Reading, Toolchain, Value, Verdict, Word
from perfguard.testing import fake
from perfguard.testing.fake import FakeDevice

CASE = Case("suite", "f", "forward")
ROWS = 64  # of 64 columns: 16 KiB a tensor of float32

kept: dict[str, Any] = {}


def verdicts_of(stored: list[Reading], now: list[Reading], device: Device) -> dict[str, Verdict]:
    """The verdicts of a run on `now` if `stored` was recorded, by metric, without those that passed."""
    entries = values(stored)
    folders = (device.identity.slug, device.identity.target or "")
    files = [Baseline(folder, "suite", cases={CASE.key: CaseBaseline(entries)}) for folder in folders]
    lane = Lane(device.identity, Toolchain(), files)
    judged = judge_case(CaseResult(CASE, readings=now), lane)
    return {verdict.metric: verdict for verdict in judged if verdict.word not in (Word.PASS, Word.BETTER)}


# -- on a CPU --------------------------------------------------------------------------------------------------------


def plain(x: torch.Tensor) -> torch.Tensor:
    """Scaled rows, transposed; the temporary that is larger than all others stands for a workspace."""
    workspace = torch.empty(64, ROWS, ROWS)
    y = x.t().clone(memory_format=torch.contiguous_format)
    workspace[0].copy_(y)
    return workspace[0] * 2.0


def extra_operator(x: torch.Tensor) -> torch.Tensor:
    return plain(x).neg_().neg_()


def scaled_by(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    """The largest entry is found in a copy of another dtype, and gone when most memory is needed."""

    def run(x: torch.Tensor) -> torch.Tensor:
        largest = x.to(dtype).amax().float()
        return (x.expand(64, ROWS, ROWS) * largest).sum(0)

    return run


def reads_back(x: torch.Tensor) -> torch.Tensor:
    x.tolist()
    return plain(x)


def waits_for_a_scalar(x: torch.Tensor) -> torch.Tensor:
    return plain(x) if x.sum() < 1e9 else x


@torch.library.custom_op("perfguard_tests::transposed", mutates_args=())
def transposed(x: torch.Tensor, extra: int) -> torch.Tensor:
    torch.empty(extra, dtype=torch.uint8)  # memory inside an operator of one's own
    return x.t().clone()


def keeps_its_result(x: torch.Tensor) -> torch.Tensor:
    kept["y"] = plain(x)
    return plain(x)


@dataclass(frozen=True)
class Mutant:
    run: Callable[[torch.Tensor], Any]
    metrics: set[str]
    words: str
    metric: str  # the one that names the harm
    base: Callable[[torch.Tensor], Any] = plain
    grad: bool = False


class Saving(torch.autograd.Function):
    """Keeps `what` for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, what: str) -> torch.Tensor:
        y, z, wide = x * 2, torch.empty(ROWS, ROWS), torch.empty(4, ROWS, ROWS)
        part = wide[0]
        tensors = {"result": (y,), "own": (z,), "two": (y, z), "view": (part,), "input": (x, y), "nothing": ()}
        ctx.save_for_backward(*tensors.get(what, (y,)))
        if what == "context":
            ctx.wide = z
        return y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return grad * 2, None


def saving(what: str) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: Saving.apply(x, what)


SAVED = {"saved_activation_bytes"}
MUTANTS = {
    "an operator more": Mutant(extra_operator, {"operators"}, "operator_names + aten.neg_ x2", "operators"),
    "a wider copy": Mutant(
        scaled_by(torch.float64), {"copy_bytes"}, "copy_bytes: 8.004 KiB -> 32 KiB", "copy_bytes",
        base=scaled_by(torch.bfloat16),
    ),
    "data read by the host": Mutant(  # K10
        reads_back, {"host_reads"}, "host reads a tensor's data: tests/measure/metrics/test_counts.py:", "host_reads"
    ),
    "a branch on data": Mutant(
        waits_for_a_scalar, {"host_reads", "operators"}, " in waits_for_a_scalar (aten._local_scalar_dense)",
        "host_reads",
    ),
    "a workspace inside an operator": Mutant(
        lambda x: transposed(x, 1 << 20),
        {"peak_memory_bytes"},
        "peak_memory_bytes: ",
        "peak_memory_bytes",
        base=lambda x: transposed(x, 1 << 12),
    ),
    "a temporary": Mutant(  # K35
        lambda x: torch.cat([x, x, x, x])[:ROWS] * 1,
        {"peak_memory_bytes", "peak_tensor_bytes"},
        "peak_tensor_bytes 48 KiB -> 80 KiB",
        "peak_tensor_bytes",
        base=lambda x: torch.cat([x, x])[:ROWS] * 1,
    ),
    "one tensor more is saved": Mutant(
        saving("two"), SAVED, "saved_tensors + float32[64,64] by aten.empty", "saved_activation_bytes",
        base=saving("result"), grad=True,
    ),
    "a view that pins its storage": Mutant(  # K34
        saving("view"), SAVED, "a view that pins 65536 bytes", "saved_activation_bytes",
        base=saving("own"), grad=True,
    ),
    "a tensor on the context": Mutant(
        saving("context"), SAVED, "saved_activation_bytes 16 KiB -> 32 KiB", "saved_activation_bytes",
        base=saving("result"), grad=True,
    ),
    "the input is saved": Mutant(
        saving("input"), {"saved_input_bytes"}, "saved_input_bytes 0 B -> 16 KiB", "saved_input_bytes",
        base=saving("result"), grad=True,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def cpu() -> CpuDevice:
    return CpuDevice()


def subject(run: Callable[[torch.Tensor], Any], grad: bool = False) -> Subject:
    x = torch.randn(ROWS, ROWS, generator=torch.Generator().manual_seed(1)).requires_grad_(grad)
    return Subject(run=lambda: run(x), args=(x,), timed=False)


def values(readings: list[Reading]) -> dict[str, Value]:
    return {reading.metric: reading.value for reading in readings}


def text(verdict: Verdict) -> str:
    from perfguard.render.words import describe_verdict

    return "\n".join(describe_verdict(verdict))


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=list(MUTANTS))
def test_a_mutant_changes_its_metric_and_no_other(mutant: Mutant, cpu: CpuDevice) -> None:
    base, worse = (read_exact(subject(run, mutant.grad), cpu) for run in (mutant.base, mutant.run))
    found = verdicts_of(base, worse, cpu)
    assert {verdict.word for verdict in found.values()} == {Word.CHANGED}, found
    assert set(found) == mutant.metrics
    told = (text(found[mutant.metric]), found[mutant.metric].reason, because("", worse, values(base)))
    assert any(mutant.words in each for each in told)
    assert verdicts_of(worse, base, cpu) == {}  # the other way round everything is the same or better


def test_a_copy_in_place_of_work(cpu: CpuDevice) -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x.t().mul(1.0)

    def copied(x: torch.Tensor) -> torch.Tensor:
        return x.t().clone()

    found = verdicts_of(read_exact(subject(scaled), cpu), read_exact(subject(copied), cpu), cpu)
    assert set(found) == {"copies", "copy_bytes"}
    assert "aten.clone at tests/measure/metrics/test_counts.py:" in found["copies"].reason
    assert found["copies"].reason.endswith(" in copied")


def test_a_result_that_is_kept(cpu: CpuDevice) -> None:
    clean = read_exact(subject(plain), cpu)
    found = verdicts_of(clean, read_exact(subject(keeps_its_result), cpu), cpu)
    change, line = text(found["residue_bytes"]).splitlines()
    assert change == "CHANGED residue_bytes: 0 B -> 16 KiB"
    assert re.fullmatch(r"  left behind: 16 KiB of \S*test_counts\.py:\d+ in plain", line)
    kept.clear()


def test_operators_and_the_peak_of_a_known_pattern(cpu: CpuDevice) -> None:
    def run() -> torch.Tensor:
        temporary = torch.empty(8 << 20, dtype=torch.uint8)
        result = torch.empty(4 << 20, dtype=torch.uint8) + 1
        del temporary
        return result

    readings = {each.metric: each for each in read_exact(Subject(run, timed=False), cpu)}
    names = ["aten.empty.memory_format", "aten.empty.memory_format", "aten.add.Tensor"]
    assert (readings["operators"].value, readings["operator_names"].value) == (3, names)
    peak = readings["peak_memory_bytes"]
    assert peak.value == pytest.approx(16 << 20, rel=0.01)
    assert (peak.floor, peak.portable) == (4096, False)


def test_a_backward_pass_is_counted(cpu: CpuDevice) -> None:
    x = torch.randn(4, 6, requires_grad=True)
    output, upstream = (x * x).sum(0), torch.randn(6)

    def backward() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad([output], [x], [upstream], retain_graph=True)

    readings = read_exact(Subject(run=backward, direction="backward", timed=False, args=(x,)), cpu)
    values = {each.metric: each.value for each in readings}
    assert values["contract"] == "(float32[4,6] strides (6,1))"
    assert int(str(values["operators"])) > 1


def test_nothing_that_counts_stays_on_for_the_timers(cpu: CpuDevice) -> None:
    """Times are read after counting: a dispatch mode or a profiler left behind would slow them."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    read_exact(subject(plain), cpu)
    assert _get_current_dispatch_mode() is None
    assert not torch._C._autograd._profiler_enabled()


# -- on the simulated GPU --------------------------------------------------------------------------------------------


@dataclass
class Kernels:
    """A call of the simulated GPU: kernels, memory and what it keeps."""

    names: tuple[str, ...] = ("first", "second")
    workspace: int = 8 << 20
    kept: int = 0
    waits: bool = False
    bytes: int = 64
    last: Any = None

    def __call__(self) -> Any:
        with fake.allocate(self.workspace):
            for name in self.names:
                fake.launch(name, bytes=self.bytes if name.startswith("Memcpy") else 0)
        if self.kept:
            self.last = fake.allocate(self.kept)
        device = fake.current()
        if self.waits and device is not None:
            device.synchronize()
        return fake.allocate(1 << 20)


TRANSFER = ("first", "second", "Memcpy DtoD")


@pytest.mark.parametrize(
    ("base", "mutant", "metric", "words", "others"),
    [
        (Kernels(), Kernels(("first", "second", "third")), "launches", "kernels + third", set()),
        (Kernels(("first", "x")), Kernels(("first", "Memcpy DtoD")), "copies", "copies: Memcpy DtoD", {"copy_bytes"}),
        (Kernels(TRANSFER), Kernels(TRANSFER, bytes=128), "copy_bytes", "64 B -> 128 B", set()),
        (Kernels(), Kernels(("first", "second", "Memset")), "launches", "kernels + Memset", set()),
        (Kernels(), Kernels(waits=True), "syncs", " in __call__ (synchronize)", {"capturable"}),
        (Kernels(), Kernels(workspace=10 << 20), "peak_memory_bytes", "8 MiB -> 10 MiB", set()),
        (Kernels(), Kernels(kept=64), "residue_bytes", "0 B -> 64 B", set()),
    ],
    ids=["launch", "copy", "copied bytes", "fill", "sync", "workspace", "kept"],
)  # fmt: skip
def test_a_mutant_on_a_device_with_a_queue(
    base: Kernels, mutant: Kernels, metric: str, words: str, others: set[str]
) -> None:
    device = FakeDevice(seed=1)
    stored, now = (read_exact(Subject(run, timed=False), device) for run in (base, mutant))
    found = verdicts_of(stored, now, device)
    assert {verdict.word for verdict in found.values()} == {Word.CHANGED}
    assert set(found) == {metric, *others}
    assert words in text(found[metric]) or words in because("", now, values(stored))


def test_a_reading_that_was_never_recorded_is_new(cpu: CpuDevice) -> None:
    """A baseline from before a metric existed accuses nobody."""
    readings = read_exact(subject(reads_back), cpu)
    found = verdicts_of([each for each in readings if each.metric != "host_reads"], readings, cpu)
    assert {metric: verdict.word for metric, verdict in found.items()} == {"host_reads": Word.NEW}
