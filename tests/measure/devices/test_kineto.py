"""Names of kernels as people should read them, and allocations counted for real on the CPU."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from perfguard.measure.devices import cpu_memory, kineto

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


words = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(lambda word: not word.startswith("triton_"))
arguments = st.recursive(words, lambda inner: st.tuples(words, inner).map(lambda pair: f"{pair[0]}<{pair[1]}, 4> "))


@given(st.lists(words, min_size=1, max_size=3), arguments)
def test_template_arguments_never_show(path: list[str], argument: str) -> None:
    name = "::".join(path)
    assert kineto.normalized(name) == name
    assert kineto.normalized(f"void {name}<{argument}>({argument}*)") == name


@torch.library.custom_op("perfguard_tests::through_a_temporary", mutates_args=())
def through_a_temporary(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x])[: x.shape[0]].clone()


def test_peak_counts_temporaries_inside_custom_operators() -> None:
    x = torch.ones(1 << 16)
    size = x.numel() * x.element_size()
    assert cpu_memory.use_of(lambda: through_a_temporary(x)).peak == 3 * size
    assert cpu_memory.use_of(lambda: x.clone()).peak == size
    assert cpu_memory.use_of(lambda: x.view(-1)).peak == 0


def test_peak_is_no_sum() -> None:
    size = 4 << 16

    def call() -> None:
        for _ in range(3):
            torch.ones(1 << 16)

    assert cpu_memory.use_of(call).peak == size
    assert cpu_memory.use_of(lambda: [torch.ones(1 << 16) for _ in range(3)]).peak == 3 * size


def test_peak_of_a_backward_pass() -> None:
    x = torch.ones(1 << 16, requires_grad=True)
    y = (x * x).sum()
    size = x.numel() * 4
    peaks = {cpu_memory.use_of(lambda: torch.autograd.grad(y, x, retain_graph=True)).peak for _ in range(3)}
    assert len(peaks) == 1
    assert 2 * size <= peaks.pop() <= 3 * size + 64


def test_the_environment_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    cpu_memory.use_of(lambda: None)
    assert "KINETO_LOG_LEVEL" not in os.environ
    monkeypatch.setenv("KINETO_LOG_LEVEL", "3")
    cpu_memory.use_of(lambda: None)
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
    assert [work.name for work in kineto.work_of(events)] == ["a", "b", "c"]


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
