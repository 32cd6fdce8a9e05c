"""One mutant a metric: a small harm that this metric turns from PASS to CHANGED, with words to act on, and no other."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from perfguard.judge.case_verdicts import judge_case
from perfguard.judge.lane import Lane
from perfguard.measure.devices import fake
from perfguard.measure.devices.device import Device
from perfguard.measure.devices.fake import FakeDevice
from perfguard.measure.devices.vendors.cpu import CpuDevice
from perfguard.measure.metrics import read_exact
from perfguard.measure.metrics.subject import Subject
from perfguard.model.records import Baseline, Case, CaseBaseline, CaseResult, Reading, Toolchain, Verdict, Word

CASE = Case("suite", "f", "forward")
ROWS = 64  # of 64 columns: 16 KiB a tensor of float32

kept: dict[str, Any] = {}
grown: list[torch.Tensor] = []


def verdicts_of(candidate: Subject, mutant: Subject, device: Device) -> dict[str, Verdict]:
    """What a run says of `mutant` where `candidate` was recorded, by metric; what passed is left out."""
    stored, now = read_exact(candidate, device), read_exact(mutant, device)
    entries = {reading.metric: reading.value for reading in stored}
    file = Baseline("any", "suite", cases={CASE.key: CaseBaseline(entries)})
    lane = Lane(device.identity, Toolchain(), {"suite": file}, {"suite": file})
    judged = judge_case(CaseResult(CASE, readings=now), lane)
    return {verdict.metric: verdict for verdict in judged if verdict.word not in (Word.PASS, Word.FASTER)}


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


def grows(x: torch.Tensor) -> torch.Tensor:
    grown.append(torch.empty(8))
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
    "data read by the host": Mutant(
        reads_back, {"host_reads"}, "host reads a tensor's data: tests/measure/metrics/test_mutants.py:", "host_reads"
    ),
    "a branch on data": Mutant(
        waits_for_a_scalar, {"host_reads", "operators"}, " in waits_for_a_scalar (aten._local_scalar_dense)",
        "host_reads",
    ),
    "a workspace inside an operator": Mutant(
        lambda x: transposed(x, 1 << 20),
        {"peak_memory_bytes"},
        "workspace_bytes 0 B -> 1008 KiB",
        "peak_memory_bytes",
        base=lambda x: transposed(x, 1 << 12),
    ),
    "a temporary": Mutant(
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
    "a view that pins its storage": Mutant(
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


def text(verdict: Verdict) -> str:
    from perfguard.render.words import describe_verdict

    return "\n".join(describe_verdict(verdict))


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=list(MUTANTS))
def test_a_mutant_changes_its_metric_and_no_other(mutant: Mutant, cpu: CpuDevice) -> None:
    found = verdicts_of(subject(mutant.base, mutant.grad), subject(mutant.run, mutant.grad), cpu)
    assert {verdict.word for verdict in found.values()} == {Word.CHANGED}, found
    assert set(found) == mutant.metrics
    assert mutant.words in text(found[mutant.metric]) or mutant.words in found[mutant.metric].reason


@pytest.mark.parametrize("mutant", [*MUTANTS.values()], ids=list(MUTANTS))
def test_the_mended_mutant_is_no_finding(mutant: Mutant, cpu: CpuDevice) -> None:
    """The other way round everything is the same or FASTER."""
    found = verdicts_of(subject(mutant.run, mutant.grad), subject(mutant.base, mutant.grad), cpu)
    assert found == {}


def test_a_copy_in_place_of_work(cpu: CpuDevice) -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x.t().mul(1.0)

    def copied(x: torch.Tensor) -> torch.Tensor:
        return x.t().clone()

    found = verdicts_of(subject(scaled), subject(copied), cpu)
    assert set(found) == {"copies", "copy_bytes"}
    assert "aten.clone at tests/measure/metrics/test_mutants.py:" in found["copies"].reason
    assert found["copies"].reason.endswith(" in copied")


def test_a_result_that_is_kept_and_a_list_that_grows(cpu: CpuDevice) -> None:
    found = verdicts_of(subject(plain), subject(keeps_its_result), cpu)
    assert {"residue_bytes"} <= set(found)
    assert "growth_bytes" not in found  # the next call replaces it
    assert text(found["residue_bytes"]) == "CHANGED residue_bytes: 0 B -> 16 KiB"
    found = verdicts_of(subject(plain), subject(grows), cpu)
    assert text(found["growth_bytes"]) == "CHANGED growth_bytes: 0 B -> 1.562 KiB"  # 50 times 32 bytes
    kept.clear()
    grown.clear()


def test_a_module_s_weights_are_no_activations(cpu: CpuDevice) -> None:
    layer = nn.Linear(ROWS, ROWS)
    x = torch.randn(ROWS, ROWS, requires_grad=True)
    readings = read_exact(Subject(run=lambda: layer(x).exp(), args=(x,), weights=tuple(layer.parameters())), cpu)
    values = {reading.metric: reading.value for reading in readings}
    assert values["saved_weight_bytes"] == values["saved_input_bytes"] == 4 * ROWS * ROWS
    assert values["saved_activation_bytes"] == 4 * ROWS * ROWS  # exp keeps its result
    assert values["saved_tensors"] == ["float32[64,64] by input 0", "float32[64,64] by aten.exp"]


def test_ten_runs_read_the_same(cpu: CpuDevice) -> None:
    """Whatever ran before, and however often."""
    runs = [saving("two"), plain, waits_for_a_scalar, keeps_its_result]
    found = [[msgspec.json.encode(read_exact(subject(run, grad=True), cpu)) for run in runs] for _ in range(10)]
    assert all(each == found[0] for each in found)
    kept.clear()


READ = """
import msgspec, torch
from perfguard.measure.devices.vendors.cpu import CpuDevice
from perfguard.measure.metrics import read_exact
from perfguard.measure.metrics.subject import Subject

x = torch.linspace(-1, 1, 64).reshape(8, 8).requires_grad_()
names = {"exp", "sin", "cos", "tanh"}  # a set of text: its order changes with the hash seed

def run():
    terms = {name: getattr(x, name)() for name in sorted(names)}
    return sum(terms.values())[x.detach() > 0].t().contiguous()

readings = [each for each in read_exact(Subject(run, args=(x,), timed=False), CpuDevice()) if each.portable]
print(msgspec.json.encode(readings).decode())
"""


def test_hash_seeds_and_threads_change_nothing_that_is_portable(tmp_path: Path) -> None:
    (tmp_path / "read.py").write_text(READ)

    def read(seed: str) -> str:
        environment = os.environ | {"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": seed}
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        line = [sys.executable, "read.py"]
        done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    first = read("1")
    assert "saved_tensors" in first
    assert "host_reads" in first
    assert read("2") == first


# -- on the simulated GPU --------------------------------------------------------------------------------------------


@dataclass
class Kernels:
    """A call of the simulated GPU: kernels, memory and what it keeps."""

    names: tuple[str, ...] = ("first", "second")
    workspace: int = 8 << 20
    kept: int = 0
    grows: int = 0
    waits: bool = False
    bytes: int = 64
    held: list[Any] = field(default_factory=list)
    last: Any = None

    def __call__(self) -> Any:
        with fake.allocate(self.workspace):
            for name in self.names:
                fake.launch(name, bytes=self.bytes if name.startswith("Memcpy") else 0)
        if self.kept:
            self.last = fake.allocate(self.kept)
        if self.grows:
            self.held.append(fake.allocate(self.grows))
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
        (Kernels(), Kernels(("first", "Memset")), "fills", "fills: 0 -> 1", set()),
        (Kernels(), Kernels(waits=True), "syncs", " in __call__ (synchronize)", {"capturable"}),
        (Kernels(), Kernels(workspace=10 << 20), "peak_memory_bytes", "workspace_bytes 7 MiB -> 9 MiB", set()),
        (Kernels(), Kernels(kept=64), "residue_bytes", "0 B -> 64 B", set()),
        (Kernels(), Kernels(grows=64), "growth_bytes", "0 B -> 3.125 KiB", {"residue_bytes"}),
        (
            Kernels(), Kernels(grows=1 << 20), "reserved_growth_bytes", "0 B -> 50 MiB",
            {"residue_bytes", "growth_bytes"},
        ),
    ],
    ids=["launch", "copy", "copied bytes", "fill", "sync", "workspace", "kept", "leak", "reserved"],
)  # fmt: skip
def test_a_mutant_on_a_device_with_a_queue(
    base: Kernels, mutant: Kernels, metric: str, words: str, others: set[str]
) -> None:
    found = verdicts_of(Subject(base, timed=False), Subject(mutant, timed=False), FakeDevice(seed=1))
    assert {verdict.word for verdict in found.values()} == {Word.CHANGED}
    assert set(found) == {metric, *others}
    assert words in text(found[metric])


def test_a_gate_of_a_reading_that_was_never_recorded_is_new(cpu: CpuDevice) -> None:
    """A baseline from before a metric existed accuses nobody."""
    readings = read_exact(subject(reads_back), cpu)
    entries = {reading.metric: reading.value for reading in readings if reading.metric != "host_reads"}
    file = Baseline("any", "suite", cases={CASE.key: CaseBaseline(entries)})
    lane = Lane(cpu.identity, Toolchain(), {"suite": file}, {"suite": file})
    words = {each.metric: each.word for each in judge_case(CaseResult(CASE, readings=readings), lane)}
    assert words.pop("host_reads") is Word.NEW
    assert set(words.values()) == {Word.PASS}


def test_every_gated_exact_metric_has_its_mutant() -> None:
    """Of the families that count launches, memory and saved bytes; the others have theirs in files of their own."""
    on_a_gpu = {"launches", "copies", "copy_bytes", "fills", "syncs", "peak_memory_bytes", "residue_bytes"}
    on_a_gpu |= {"growth_bytes", "reserved_growth_bytes"}
    on_a_cpu = set().union(*(mutant.metrics for mutant in MUTANTS.values())) | {
        "copies",
        "residue_bytes",
        "growth_bytes",
    }
    gated: dict[str, set[str]] = {}
    for device in (CpuDevice(), FakeDevice(seed=1)):
        x = torch.ones(4, 4, requires_grad=True)
        readings: list[Reading] = read_exact(Subject(run=lambda x=x: x * 2, args=(x,), timed=False), device)
        gated[device.identity.vendor] = {reading.metric for reading in readings if reading.gated}
    elsewhere = {"contract", "capturable", "replays"}
    assert gated["cpu"] - elsewhere <= on_a_cpu
    assert gated["fake"] - elsewhere <= on_a_gpu | on_a_cpu
