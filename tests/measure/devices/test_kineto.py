"""Profiles: names of kernels as people should read them, work in order of launch, and intervals of each call."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]  # re-exported without saying so

from perfguard.measure.devices import kineto

# names as the profiler gave them on an H200 with torch 2.11, the long ones cut as marked
COPY = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::"
    "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#12}::"
    "operator()() const::{lambda(c10::BFloat16)#1}>(at::TensorIteratorBase&"
)
SCALE = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::AUnaryFunctor<c10::BFloat16, c10::BFloat16, "
    "c10::BFloat16, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 2ul> >(int"
)
SUM = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<c10::BFloat16, at::native::func_wrapper_t<"
    "c10::BFloat16, at::native::sum_functor<c10::BFloat16, float, c10::BFloat16>::operator()("
)
CAT = (
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy_alignedK_contig<at::native::"
    "(anonymous namespace)::OpaqueType<4u>, unsigned int, 1, 128, 1, 16>(at::native::"
)


@pytest.mark.parametrize(
    ("name", "readable"),
    [
        (COPY, "at::native::elementwise_kernel[direct_copy_kernel_cuda]"),
        (SCALE, "at::native::vectorized_elementwise_kernel[MulFunctor]"),
        (SUM, "at::native::reduce_kernel[sum_functor]"),
        (CAT, "at::native::CatArrayBatchedCopy_alignedK_contig"),
        ("_double_kernel", "_double_kernel"),
        ("transpose_3d", "transpose_3d"),
        ("triton_red_fused__softmax_add_exp_mul_0", "triton_red_fused__softmax_add_exp_mul"),
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD"),
        ("Memset (Device)", "Memset"),
        ("void a::b<c<d>, e>::f<1>(g)", "a::b::f"),
    ],
)
def test_normalized(name: str, readable: str) -> None:
    assert kineto.normalized(name) == readable


def test_the_environment_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    kineto.allocations(lambda: None)
    assert "KINETO_LOG_LEVEL" not in os.environ
    monkeypatch.setenv("KINETO_LOG_LEVEL", "3")
    kineto.allocations(lambda: None)
    assert os.environ["KINETO_LOG_LEVEL"] == "3"


def event(cat: str, name: str, ts: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": 1.0, "args": args}


def test_work_is_in_the_order_of_launching_with_what_was_launched() -> None:
    """Two streams run at once: the order in which they started may differ from run to run."""
    kernel = {"grid": [8, 1, 1], "block": [128, 1, 1], "shared memory": 0, "registers per thread": 40}
    events: list[dict[str, Any]] = [
        event("kernel", "second", 30.0, stream=20, correlation=12, **kernel, **{"warps per SM": 1.5}),
        event("cpu_op", "aten::mul", 1.0, **{"External id": 3}),
        event("cuda_runtime", "cudaLaunchKernel", 2.0, correlation=11, cbid=211),
        event("kernel", "first", 31.0, stream=7, correlation=11, **kernel),
        event("gpu_memcpy", "Memcpy DtoD", 40.0, stream=7, correlation=13, bytes=64, **{"memory bandwidth (GB/s)": 7}),
        event("gpu_memset", "Memset (Device)", 50.0, stream=7, correlation=14, bytes=8),
        event("gpu_user_annotation", "ProfilerStep", 0.0, stream=7),
        {"ph": "M", "name": "process_name"},
    ]
    assert kineto.work_of(events) == [
        kineto.Work("kernel", "first", 0, kernel),
        kineto.Work("kernel", "second", 1, kernel),
        kineto.Work("copy", "Memcpy DtoD", 0, {"bytes": 64}),
        kineto.Work("fill", "Memset (Device)", 0, {"bytes": 8}),
    ]


def test_kernels_of_one_graph_launch_keep_the_order_of_starting() -> None:
    events = [event("kernel", name, ts, stream=7, correlation=5) for name, ts in (("b", 2.0), ("a", 1.0), ("c", 3.0))]
    assert [each.name for each in kineto.work_of(events)] == ["a", "b", "c"]


def test_amd_tells_the_grid_with_the_launch() -> None:
    launch = {"grid": [4, 1, 1], "block": [256, 1, 1], "shared memory": 512}
    events: list[dict[str, Any]] = [
        event("cuda_runtime", "hipLaunchKernel", 1.0, correlation=1, **launch),
        event("kernel", "Cijk_Ailk", 2.0, stream=0, correlation=1, kind="Dispatch"),
    ]
    assert kineto.work_of(events) == [kineto.Work("kernel", "Cijk_Ailk", 0, launch)]


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_a_trace_of_the_processor_holds_no_device_work() -> None:
    """The trace is written and read for real; only a GPU would have put work into it."""
    assert kineto.work_of(kineto.trace_events(lambda: torch.ones(4) + 1, "cuda")) == []


CPU, GPU = DeviceType.CPU, DeviceType.CUDA


def raw(name: str, start: int, end: int, *, device: Any = CPU, correlation: int = 0, annotation: bool = False) -> Any:
    return SimpleNamespace(
        name=lambda: name,
        start_ns=lambda: start,
        end_ns=lambda: end,
        device_type=lambda: device,
        correlation_id=lambda: correlation,
        is_user_annotation=lambda: annotation,
        device_resource_id=lambda: 7,
    )


def call(start: int, end: int) -> Any:
    return raw("perfguard call", start, end, annotation=True)


def work(start: int, end: int, correlation: int) -> Any:
    return raw("kernel", start, end, device=GPU, correlation=correlation)


def test_the_time_of_a_kernel_is_the_sum_of_its_launches() -> None:
    """Templates are left out, inductor's numbers are not: they tell its kernels apart, as launches do."""
    events = [
        raw("_rms_norm", 1000, 3000, device=GPU),
        raw("_rms_norm", 4000, 4500, device=GPU),
        raw("void fill<int>(int)", 5000, 6000, device=GPU),
        raw("triton_poi_fused_1", 7000, 7250, device=GPU),
        raw("annotation", 0, 9000, device=GPU, annotation=True),
        raw("cudaLaunchKernel", 900, 990),
    ]
    assert kineto.by_kernel(events, GPU) == {"_rms_norm": 2.5, "fill": 1.0, "triton_poi_fused_1": 0.25}


def test_only_what_the_device_does_inside_is_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host is not followed, which would take longer than many a test; all work is waited for, before and after."""
    done = list[Any]()

    @contextlib.contextmanager
    def profile(**given: Any) -> Iterator[Any]:
        done.append((given["use_cpu"], given["use_device"]))
        yield SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: [work(1, 3001, 7)]))

    monkeypatch.setattr(kineto, "profile", profile)
    with kineto.kernel_times(lambda: done.append("wait"), "cuda") as found:
        done.append("test")
        assert found == {}
    assert done == ["wait", (False, "cuda"), "test", "wait"]
    assert found == {"kernel": 3.0}


@pytest.mark.parametrize(
    ("events", "intervals"),
    [
        (
            [
                call(1000, 2000),
                call(5000, 6000),
                raw("cudaLaunchKernel", 1100, 1110, correlation=7),
                raw("cuLaunchKernelEx", 5100, 5110, correlation=9),
                raw("hipModuleLaunchKernel", 1200, 1210, correlation=8),
                work(5300, 5400, 9),
                work(1500, 1700, 8),
                work(1300, 1400, 7),
            ],
            [[(0.3, 0.4), (0.5, 0.7)], [(4.3, 4.4)]],
        ),
        (  # a flush does not leak into the call after it
            [
                raw("cudaMemsetAsync", 900, 910, correlation=3),
                call(1000, 2000),
                raw("cudaLaunchKernel", 1100, 1110, correlation=4),
                work(990, 1050, 3),  # its end lies within the call
                work(1010, 1060, 3),  # and this would, with clocks a little apart
                work(1300, 1400, 4),
            ],
            [[(0.3, 0.4)]],
        ),
        (  # operators of the same number launch nothing
            [
                raw("aten::mul", 500, 600, correlation=4),
                call(1000, 2000),
                raw("cudaLaunchKernel", 1100, 1110, correlation=4),
                raw("custom::op", 2500, 2600, correlation=4),
                work(1300, 1400, 4),
            ],
            [[(0.3, 0.4)]],
        ),
        (  # of an unknown runtime: by its time
            [call(1000, 2000), call(3000, 4000), work(3100, 3200, 5), work(2500, 2600, 6), work(500, 600, 7)],
            [[], [(2.1, 2.2)]],
        ),
        ([call(1000, 2000), raw("perfguard call", 1200, 1500, device=GPU, annotation=True)], [[]]),
    ],
    ids=["launched", "flush", "operators", "unknown runtime", "region on the device"],
)
def test_work_belongs_to_the_call_that_launched_it(events: list[Any], intervals: list[Any]) -> None:
    assert kineto.joined(events, GPU) == intervals


def test_intervals_come_in_the_order_of_their_starts() -> None:
    launches = [raw("cudaLaunchKernel", 1100 + number, 1110, correlation=number) for number in (1, 2)]
    (intervals,) = kineto.joined([call(1000, 2000), *launches, work(1500, 1600, 1), work(1300, 1400, 2)], GPU)
    assert intervals == [(0.3, 0.4), (0.5, 0.6)]


def test_each_call_is_waited_for_and_so_is_what_comes_before(monkeypatch: Any) -> None:
    order: list[str] = []

    def events(conducted: Any, _activities: Any) -> list[Any]:
        conducted()
        return []

    monkeypatch.setattr(kineto, "raw_events", events)
    run, flush, wait = (lambda word=word: order.append(word) for word in ("run", "flush", "wait"))
    kineto.intervals([run, run], flush, wait, "cuda")
    assert order == ["flush", "wait", "run", "wait"] * 2
