"""What one profile of a GPU tells: launches, copies, and where the host waited; traces as CUDA writes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from perfguard.measure.devices import gpu_activity, kineto, operators
from perfguard.measure.devices.activity import Activity, Copied, Waited
from tests.measure.devices.test_torch_gpu import Gpu

COPY = "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<at::native::direct_copy_kernel_cuda(x"


def event(cat: str, name: str, ts: float, dur: float = 1.0, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}


def runtime(name: str, ts: float, number: int = 0, kind: str = "cuda_runtime") -> dict[str, Any]:
    return event(kind, name, ts, correlation=number)


def work(name: str, ts: float, number: int, cat: str = "kernel", **args: Any) -> dict[str, Any]:
    return event(cat, name, ts, correlation=number, stream=7, **args)


CALL = event("user_annotation", "perfguard: the call", 10.0, 80.0)
EVENTS = [
    runtime("cudaDeviceSynchronize", 5.0),  # before the call
    CALL,
    runtime("cudaLaunchKernel", 11.0, 1),
    runtime("cudaLaunchKernel", 12.0, 2),
    runtime("cudaMemcpyAsync", 13.0, 3),
    runtime("cudaStreamSynchronize", 14.0),
    runtime("cudaMemsetAsync", 20.0, 4),
    runtime("cudaStreamWaitEvent", 21.0),  # the device waits, not the host
    runtime("cudaEventQuery", 22.0),
    work("void first_kernel<float>(float*)", 30.0, 1),
    work(COPY, 40.0, 2),
    work("Memcpy DtoH (Device -> Pageable)", 50.0, 3, "gpu_memcpy", bytes=4),
    work("Memset (Device)", 60.0, 4, "gpu_memset", bytes=64),
    runtime("cudaDeviceSynchronize", 95.0),  # perfguard's own
]


def test_a_trace_as_cuda_writes_it() -> None:
    copies = [Copied("at::native::elementwise_kernel[direct_copy_kernel_cuda]"), Copied("Memcpy DtoH", 4)]
    names = ["first_kernel", copies[0].name, "Memcpy DtoH", "Memset"]
    assert gpu_activity.activity_of(EVENTS) == Activity(names, copies, [Waited("cudaStreamSynchronize")])
    assert gpu_activity.activity_of([CALL]) == Activity([], [], [])
    assert gpu_activity.activity_of([]) == Activity([], [], [])


def test_of_a_step_only_what_its_pass_launches_counts() -> None:
    before, after = (runtime("cudaLaunchKernel", ts, number) for ts, number in ((4.0, 8), (91.0, 9)))
    events = [*EVENTS, before, after, work("before", 15.0, 8), work("after", 92.0, 9)]
    assert gpu_activity.activity_of(events, part=True) == gpu_activity.activity_of(EVENTS)


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("cudaStreamSynchronize", True),
        ("cudaEventSynchronize", True),
        ("cudaMemcpy", True),
        ("hipDeviceSynchronize", True),
        ("hipMemcpyWithStream", True),  # how torch copies to the host on ROCm
        ("urQueueFinish", True),
        ("cudaMemcpyAsync", False),
        ("cudaMemcpyPeerAsync", False),
        ("cudaLaunchKernel", False),
        ("cudaStreamIsCapturing", False),
    ],
)
def test_what_waits(name: str, waits: bool) -> None:
    found = gpu_activity.activity_of([CALL, runtime(name, 20.0, kind="cuda_driver")]).waits
    assert [each.name for each in found] == ([name] if waits else [])


def test_lines_are_those_that_python_knows() -> None:
    seen = Activity(["k"], waits=[Waited("cudaStreamSynchronize"), Waited("cudaEventSynchronize")])
    located = [Waited("aten._local_scalar_dense", "a.py:3 in f")]
    assert gpu_activity.with_places(seen, located).waits == [
        Waited("cudaStreamSynchronize", "a.py:3 in f (aten._local_scalar_dense)"),
        Waited("cudaEventSynchronize"),  # a library's own
    ]
    assert len(gpu_activity.with_places(seen, located * 3).waits) == 2


def test_a_call_that_waits_is_made_once_more_for_its_lines(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(gpu_activity.kineto, "trace_events", lambda call, _kind: (call(), EVENTS)[1])
    monkeypatch.setattr(gpu_activity.operators, "of_call", _on_a_gpu(operators.of_call))

    def call() -> float:
        calls.append(1)
        return torch.ones(()).item()

    found = Gpu(backend=backend()).activity(call)
    assert len(calls) == 2
    assert [wait.place.rpartition(" in ")[2] for wait in found.waits] == ["call (aten._local_scalar_dense)"]
    monkeypatch.setattr(gpu_activity.kineto, "trace_events", lambda call, _kind: (call(), [CALL])[1])
    assert Gpu(backend=backend()).activity(call).waits == []
    assert len(calls) == 3


def test_the_same_profile_tells_the_code(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"grid": [1, 1, 1], "block": [32, 1, 1]}
    events = [CALL, work("void at::native::fill<float>(float*)", 30.0, 1, **facts)]
    profiles = []
    monkeypatch.setattr(
        gpu_activity.kineto, "trace_events", lambda call, _kind: (call(), profiles.append(1), events)[2]
    )
    gpu = Gpu(backend=backend())
    code = gpu.activity(lambda: None).code
    assert code is not None
    assert profiles == [1]
    events[1]["args"]["grid"] = [2, 1, 1]
    assert gpu.activity(lambda: None).code not in (None, code)
    events.append(work("of_unknown_origin", 40.0, 2, **facts))
    assert gpu.activity(lambda: None).code is None


def _on_a_gpu(of_call: Any) -> Any:
    """The CPU's tensors stand for the GPU's."""
    return lambda call, kind, waiting: of_call(call, "cpu", waiting)


def test_only_calls_inside_the_annotation_count() -> None:
    assert kineto.runtime_calls([CALL, *EVENTS], "another region") == []
    assert "cudaLaunchKernel" in kineto.runtime_calls(EVENTS, "perfguard: the call")
