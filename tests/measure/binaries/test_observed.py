"""Kernels of observed tests: seen on a GPU, where they ran, and described so that they can be compiled once more."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton

from perfguard._compat.triton_internals import driven_by
from perfguard.measure.binaries.call_binaries import Binaries, ObservedLaunches, of_pass
from perfguard.measure.binaries.compiler import Job, binaries_of
from perfguard.measure.binaries.kernel_code import code_of
from perfguard.measure.binaries.kernel_facts import machine_code
from perfguard.measure.binaries.targets import Driver, target_of
from perfguard.measure.devices.activity import ObservedActivity
from perfguard.model.records.code import same_parts
from tests.measure.binaries.test_kernel_code import A, B, X
from tests.measure.metrics.binaries import GLUON, PRODUCT, SCALE, TUNED, Reader
from tests.nursery import Nursery

SOURCES = {"scale_kernel": (SCALE, (X,)), "product_kernel": (PRODUCT, (A, B)), "shift_kernel": (GLUON, (X,))}


@pytest.mark.parametrize("name", SOURCES)
def test_a_kernel_that_a_gpu_ran_is_the_one_that_is_compiled_again(
    reader: Reader, nursery: Nursery, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled in this process for a GPU that is not here, as a launch would."""
    if not isinstance(triton.language.zeros, triton.JITFunction):
        assert f"[{name}] PASSED" in _where_nothing_is_interpreted(nursery)
        return
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")  # as in the compiling process; its binary has none
    source, args = SOURCES[name]
    call = reader.call(source, *args)
    followed = reader.follow(call)
    (launch,) = followed[0].recording.launches
    with driven_by(Driver(target_of("sm_90"))):
        compiled = call.fn.__globals__[name].preload(json.dumps(json.loads(launch.data) | {"key": launch.data}))
    hopper: Any = SimpleNamespace(holds_cpu_tensors=False, identity=SimpleNamespace(architecture="sm_90"))
    observed = ObservedLaunches(Binaries(("gfx942",), reader.compiler), hopper)
    (seen,) = observed.followed(ObservedActivity(compiled=[(compiled, None)]))
    (again,) = seen.recording.launches
    (facts,) = binaries_of([Job(reader.compiler, "sm_90", again)]).values()
    assert (seen.target, facts.error, facts.binary) == ("sm_90", "", machine_code(compiled.kernel))
    if name != "shift_kernel":  # a call's fingerprint is of its arguments, too, where nothing interprets the kernel
        assert code_of(of_pass([seen], "test"), reader.compiler) == code_of(followed, reader.compiler)
    assert observed.followed(ObservedActivity()) == []


def test_a_tuned_kernel_that_a_gpu_ran_is_the_same_whatever_was_chosen(
    reader: Reader, nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not isinstance(triton.language.zeros, triton.JITFunction):
        assert "whatever_was_chosen PASSED" in _where_nothing_is_interpreted(nursery)
        return
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    call = reader.call(TUNED, X)
    tuner = call.fn.__globals__["scale_kernel"]
    choices = []
    for launch in reader.follow(call)[0].recording.launches:
        with driven_by(Driver(target_of("sm_90"))):
            choices.append(tuner.fn.preload(json.dumps(json.loads(launch.data) | {"key": launch.data})))
    hopper: Any = SimpleNamespace(holds_cpu_tensors=False, identity=SimpleNamespace(architecture="sm_90"))
    observed = ObservedLaunches(Binaries((), reader.compiler), hopper)

    def code(*kernels: Any) -> dict[str, str]:
        return code_of(
            observed.followed(ObservedActivity(compiled=[(each, tuner) for each in kernels])), reader.compiler
        )

    assert len(choices) == 2
    assert choices[0].hash != choices[1].hash
    one, other, both = code(choices[0]), code(choices[1]), code(*choices)
    assert one == other == both
    assert all(one["scale_kernel"].split("-"))
    tuner.configs = [*tuner.configs, triton.Config({"BLOCK": 4096})]
    assert not same_parts(code(choices[0]), one)


@functools.cache
def _where_nothing_is_interpreted(nursery: Nursery) -> str:
    """What pytest says of the test above in a process of its own. This one has imported triton.language for the
    interpreter, so that the device functions of Triton would be interpreted while a kernel that calls them is
    compiled."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [nursery.python, "-m", "pytest", "-v", "-p", "no:cacheprovider", __file__, "-k", "that_a_gpu_ran"]
    child = subprocess.run(command, env=environment, text=True, capture_output=True)
    return child.stdout + child.stderr


def test_a_kernel_of_no_module_is_known_by_its_binary(reader: Reader) -> None:
    hopper: Any = SimpleNamespace(holds_cpu_tensors=False, identity=SimpleNamespace(architecture="sm_90"))
    observed = ObservedLaunches(Binaries((), reader.compiler), hopper)
    kernels = [SimpleNamespace(name="generated", kernel=b"", hash=text, src=None) for text in ("one", "another")]
    codes = [
        code_of(observed.followed(ObservedActivity(compiled=[(each, None)])), reader.compiler, new=False)
        for each in kernels
    ]
    assert codes[0].keys() == codes[1].keys() == {"generated"}
    assert codes[0] != codes[1]
    assert torch.cuda.is_available() or codes[0]["generated"].endswith("-")
