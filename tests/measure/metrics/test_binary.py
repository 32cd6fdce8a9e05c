"""The readings of a run that tell of its kernels."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perfguard.judge.exact import judge_exact
from perfguard.measure.binaries.call_binaries import Binaries
from perfguard.measure.binaries.kernel_code import configuration_of
from perfguard.measure.metrics import binary
from perfguard.model.records import Word
from tests.measure.metrics.binaries import SCALE, Reader

X = torch.randn(64, 128)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    pytest.importorskip("triton")
    made = Reader(tmp_path_factory.mktemp("binaries"))
    yield made
    made.close()


def test_code_is_recorded_and_gates_nothing(reader: Reader) -> None:
    readings = reader.read(reader.call(SCALE, X), ("sm_90", "gfx942"))
    assert set(readings) == {"code"}
    code = readings["code"]
    assert isinstance(code.value, dict)
    assert list(code.value) == ["scale_kernel"]
    assert (code.stored, code.gated, code.portable, code.drifts, code.target) == (True, False, True, False, "")
    assert judge_exact(code, {"scale_kernel": "another"}).word is Word.PASS
    assert reader.compiler.compiled == 0


def test_a_call_without_kernels_has_an_empty_fingerprint(reader: Reader) -> None:
    """A call that has lost its kernels on a chip that is not here would be as good as before, by all other readings."""
    code = reader.read(reader.call("def call(x):\n    return x * 2\n", X))["code"]
    assert code.value == {}
    assert code.is_empty


def test_on_a_gpu_its_own_architecture_is_followed_in_place(reader: Reader) -> None:
    """A device that says it is a GPU: nothing is forked, simulated or launched."""
    source = SCALE.replace('    if x.device.type == "cpu":\n        return x * 2.0\n', "").replace("empty", "zeros")
    hopper = SimpleNamespace(architecture="sm_90")
    gpu: Any = SimpleNamespace(holds_cpu_tensors=False, asynchronous=True, identity=hopper)
    call, binaries = reader.call(source, X), Binaries(("gfx942",), reader.compiler)
    subject: Any = SimpleNamespace(
        test=None, binaries=binaries, call=call, direction="forward", run=lambda: None, known_code={}
    )
    (code,) = binary.read(subject, gpu)
    assert list(code.value) == ["scale_kernel"]
    assert (code.portable, code.covers) == (False, [])
    (found,) = binaries.of(call, gpu)
    assert configuration_of([found])["`scale_kernel`: num_warps"] == "4"
    assert (found.target, found.recording.memory_operators) == ("sm_90", {})  # the GPU counts its own
