"""The metric modules together: their order, their readings of one case, and what all of them keep to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from perfguard.measure.devices.vendors.cpu import CpuDevice
from perfguard.measure.metrics import all_metrics, read_exact, read_timed
from perfguard.measure.metrics.subject import Subject
from perfguard.measure.replay import steps
from perfguard.model.call import Call
from perfguard.model.records import Better
from perfguard.testing import fake
from perfguard.testing.fake import FakeDevice
from tests.measure.metrics.binaries import SCALE, Reader

ROOT = Path(__file__).parents[3]


def work() -> int:
    with fake.allocate(3 * 2**20):
        fake.launch("first", us=10.0, host_us=4.0)
        fake.launch("second", us=20.0, host_us=4.0)
    return 7


def quiet() -> FakeDevice:
    return FakeDevice(session_noise=0, block_noise=0, launch_noise=0, seed=1)


def test_exact_metrics_come_before_timed_ones() -> None:
    metrics = all_metrics()
    assert [metric.TIMED for metric in metrics] == sorted(metric.TIMED for metric in metrics)
    exact = [getattr(metric, "__name__", "").rpartition(".")[2] for metric in metrics if not metric.TIMED]
    assert exact[-1] == "compilation"  # leaves nothing compiled for others to count


def test_readings_of_a_gpu_case_and_how_they_gate() -> None:
    subject, device = Subject(run=work), quiet()
    readings = {each.metric: each for each in read_exact(subject, device) + read_timed(subject, device)}
    assert list(readings)[-2:] == ["device_time_us", "host_time_us"]
    assert "fingerprint" in readings
    contract, launches, kernels = (readings[name] for name in ("contract", "launches", "kernels"))
    assert (contract.value, contract.better, contract.portable, contract.drifts) == ("int", Better.SAME, True, False)
    assert (launches.value, launches.better, launches.gated, launches.drifts) == (2, Better.LOWER, True, True)
    assert (kernels.value, kernels.gated) == (["first", "second"], False)
    memory = readings["peak_memory_bytes"]
    assert (memory.value, memory.tolerance, memory.floor, memory.drifts) == (3 * 2**20, 0.005, 2**20, True)


def test_the_first_call_does_not_count() -> None:
    """Compiling and autotuning launch and allocate; the second call is what is guarded."""
    for metric in all_metrics():
        calls: list[int] = []

        def tunes(calls: list[int] = calls) -> None:
            calls.append(1)
            if len(calls) == 1:
                with fake.allocate(2**30):
                    fake.launch("tuning")
            work()

        for reading in metric.read(Subject(run=tunes, timed=False), quiet()):
            assert reading.value not in (3, 2**30, ["tuning", "first", "second"])
            assert reading.metric != "peak_memory_bytes" or reading.value == 3 * 2**20


def test_exceptions_of_the_call_propagate() -> None:
    def broken() -> None:
        raise RuntimeError("illegal memory access")

    for metric in all_metrics():
        if metric.read(Subject(run=work), quiet()):  # not those of other devices
            with pytest.raises(RuntimeError, match="illegal memory access"):
                metric.read(Subject(run=broken), quiet())


def portable(folder: Path) -> dict[str, object]:
    """Portable readings of an eager call and of a compiled one, and those of a kernel on two targets."""
    x = torch.linspace(-1, 1, 64).reshape(8, 8).requires_grad_()
    names = {"exp", "sin", "cos", "tanh"}  # a set of text: its order changes with the hash seed

    def terms() -> torch.Tensor:
        values = {name: getattr(x, name)() for name in sorted(names)}
        return sum(values.values(), torch.zeros(8, 8))[x.detach() > 0].t().contiguous()

    def branching(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        return -y if y.sum() < 0 else y * 2

    walk = ((torch.ones(3, 4),),)
    call = Call(torch.compile(branching, backend="eager"), (torch.ones(2, 4),), branching, walk=walk)
    cpu, reader = CpuDevice(), Reader(folder)
    eager = read_exact(Subject(terms, args=(x,), timed=False), cpu)
    compiled = read_exact(Subject(call.run, steps=steps(call), timed=False), cpu)
    of_targets = reader.read(reader.call(SCALE, torch.ones(64, 128), name="kernels_of_all"), ("sm_90", "gfx942"))
    reader.compiler.close()
    readings = [each for each in (*eager, *compiled) if each.portable] + list(of_targets.values())
    return {f"{number} {each.metric}": [each.value, each.note] for number, each in enumerate(readings)}


@pytest.mark.nightly  # starts Python and compiles; a fingerprint's: test_kernel_code.py
def test_neither_hash_seed_nor_threads_nor_folder_move_a_portable_reading(tmp_path: Path) -> None:
    """From what they are in this process."""
    pytest.importorskip("triton")
    environment = os.environ | {"PYTHONHASHSEED": "20261121", "OMP_NUM_THREADS": "3"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    code = "import json, sys, pathlib, tests.measure.metrics.test_metrics as here\n"
    code += "print(json.dumps(here.portable(pathlib.Path(sys.argv[1]))))"
    line = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "another" / "checkout")]
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    here = portable(tmp_path / "here")
    assert json.loads(done.stdout) == json.loads(json.dumps(here))
    found = {name.partition(" ")[2] for name in here}
    assert {"saved_tensors", "host_reads", "graph_breaks", "code"} <= found
