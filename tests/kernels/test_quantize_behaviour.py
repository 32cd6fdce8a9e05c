"""What a quantiser does around its numbers: errors, registration, memory, repetition, compilation, capture."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kernels import fp8
from kernels.fp8 import shapes
from kernels.fp8.formats import FORMATS
from kernels.fp8.inputs import LAYOUTS, VALUES
from kernels.fp8.shapes import Split
from kernels.launch import Launch
from tests.kernels.guards import no_device_waits, no_host_reads
from tests.kernels.paths import GPU, KernelPath, every_candidate
from tests.kernels.quantizers import (
    BLOCKS,
    QUANTIZERS,
    Quantizer,
    Tensors,
    assert_bit_equal,
    by_kernel,
    name,
    without_nan,
)

ALL = QUANTIZERS + BLOCKS
EVERY = pytest.mark.parametrize("q", ALL, ids=name)
WITH_TOKENS = pytest.mark.parametrize("q", [q for q in ALL if q.kind != "weight"], ids=name)

# An empty group, a tail against every block size, and rows past the last group.
SMALL = Split("small", (19, 0, 14), unused=4)
WIDTH = 22

# Two chunks and more of a tall group, beside short ones: what depends on the configuration depends on this.
TALL = Split("tall", (7, 0, 71), unused=2)


def operator(q: Quantizer) -> Any:
    return getattr(torch.ops.perfguard_kernels, f"fp8_quantize_{q.name}").default


def operator_arguments(q: Quantizer, arguments: Tensors) -> tuple[Any, ...]:
    """All of the operator's arguments in order: the tensors, then what the public function fills in."""
    rest = {"dtype": torch.float8_e4m3fn, q.flag: False, "candidate": None, "inverse": False}
    return (*arguments, *(rest[argument.name] for argument in operator(q)._schema.arguments[len(arguments) :]))


# ---------------------------------------------------------------------------------------------------
# Wrong arguments

X = torch.zeros(8, 8)
W = torch.zeros(2, 8, 8)
OFFS = torch.tensor([3, 8], dtype=torch.int32)


def _wrong() -> Iterator[Any]:
    """Each quantiser with each of its arguments wrong, and what the message has to say."""
    for q in ALL:
        if q.kind == "weight":
            good: dict[str, Any] = {"w": W}
        elif q.kind == "dual":
            good = {"x1": X, "x2": X, "offs": OFFS}
        else:
            good = {"x": X, "offs": OFFS} if q.is_grouped else {"x": X}
        wrong: list[tuple[str, str, Any, str]] = []
        for operand in [key for key in good if key != "offs"]:
            ndim = "2 or 3" if q in BLOCKS else good[operand].ndim
            wrong += [
                ("float64", operand, good[operand].double(), "is torch.float64; may be torch.bfloat16, "),
                ("integer", operand, good[operand].int(), "is torch.int32; may be torch.bfloat16, "),
                ("ndim", operand, X.flatten(), f"has 1 dimensions, shape (64,); may have {ndim}"),
                ("list", operand, [1.0], "is a list; may be a tensor"),
            ]
        if "offs" in good:
            wrong += [
                ("int64", "offs", OFFS.long(), "is torch.int64; may be torch.int32"),
                ("ndim", "offs", OFFS[None], "has 2 dimensions, shape (1, 2); may have 1"),
                ("device", "offs", OFFS.to("meta"), "is on meta; may be on cpu"),
                ("list", "offs", [3, 8], "is a list; may be a tensor"),
            ]
        if q.kind == "dual":
            wrong += [
                ("rows", "x2", X[:7], "has 7 rows; may have 8, as x1 has"),
                ("mixed", "x2", X.half(), "is torch.float16; may be torch.float32, as x1 is"),
            ]
        wrong.append(("dtype", "dtype", torch.int8, "is torch.int8; may be torch.float8_e4m3fn, "))
        for what, argument, value, message in wrong:
            case = (q, {**good, argument: value}, f"{argument}: {message}")
            yield pytest.param(*case, id=f"{q.name}-{argument}-{what}")


@pytest.mark.parametrize(("q", "arguments", "message"), list(_wrong()))
def test_wrong_arguments_are_named(q: Quantizer, arguments: dict[str, Any], message: str) -> None:
    """One error that says which argument, what it is and what it may be; the reference says the same."""
    for function in (q.function, q.reference):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            function(**arguments)


# ---------------------------------------------------------------------------------------------------
# Registration


@EVERY
def test_opcheck(q: Quantizer, compiled_path: KernelPath) -> None:
    """Schema, fake and autograd registration, and the same traced with symbolic sizes."""
    arguments = tuple(without_nan(tensor) for tensor in q.arguments(SMALL, WIDTH, compiled_path.device))
    torch.library.opcheck(operator(q), operator_arguments(q, arguments))


FORMS = [
    Split("plain", (19, 14)),
    Split("one", (1,)),  # a stride of a dimension of size 1
    Split("no-rows", (0, 0)),  # nothing but scales
]


@pytest.mark.parametrize("form", FORMS, ids=str)
@EVERY
def test_fake_results_have_the_real_form(q: Quantizer, form: Split, triton_path: KernelPath) -> None:
    """dtype, shape and strides, for what is compiled around the operator."""
    arguments = q.arguments(form, WIDTH, triton_path.device)
    real = q.function(*arguments)
    with FakeTensorMode() as mode:
        fake = q.function(*(mode.from_tensor(tensor) for tensor in arguments))
    for one, other in zip(fake, real, strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        assert one.device == other.device


@EVERY
def test_a_fake_of_another_device_asks_nothing_of_it(q: Quantizer) -> None:
    """Where the format is given: a GPU that is not there could not tell its own."""
    drawn = q.arguments(Split("two", (5, 3)), WIDTH, torch.device("cpu"))
    with FakeTensorMode():
        elsewhere = [torch.empty(each.shape, dtype=each.dtype, device="cuda") for each in drawn]
        results = q.function(*elsewhere, dtype=torch.float8_e4m3fn)
    assert {each.device.type for each in results} == {"cuda"}


@EVERY
def test_eager_path_is_the_reference(q: Quantizer) -> None:
    """A CPU tensor without the interpreter: every option reaches the reference, every result comes back."""
    arguments = q.arguments(SMALL, WIDTH, "cpu")
    assert fp8.path("cpu") == "eager"
    for format_ in FORMATS.values():
        options = {"dtype": format_.dtype, q.flag: format_.bias > 8}
        assert_bit_equal(q.function(*arguments, **options), q.reference(*arguments, **options), str(format_))


# ---------------------------------------------------------------------------------------------------
# Memory


@by_kernel(QUANTIZERS)
def test_the_host_reads_no_data(q: Quantizer, triton_path: KernelPath) -> None:
    """Offsets above all: the grid must not depend on them."""
    arguments = q.arguments(SMALL, WIDTH, triton_path.device)
    q.function(*arguments)  # compilation may read what it likes
    with no_host_reads(), no_device_waits():
        q.function(*arguments)


# ---------------------------------------------------------------------------------------------------
# Order of calls


@by_kernel(QUANTIZERS)
def test_counts_change_between_calls(q: Quantizer, triton_path: KernelPath) -> None:
    """Other numbers of tokens, and of groups that the same tokens are in, in one process: each as by a fresh call."""
    counts = ((48, 16), (48, 1), (1, 2), (48, 4), (33, 2), (48, 16))
    for rows, groups in counts if q.is_grouped else counts[1:]:
        arguments = q.arguments(shapes.random_split(rows, groups), 5, triton_path.device)
        assert_bit_equal(q.function(*arguments), q.reference(*arguments), f"{rows} rows, {groups} groups")


# ---------------------------------------------------------------------------------------------------
# Configurations


CANDIDATE_INPUTS: dict[str, dict[str, Any]] = {
    "plain": {"split": TALL, "width": WIDTH},
    "odd": {"split": SMALL, "width": 21, "fill": VALUES["nan-payloads"]},
    "skewed": {"split": Split("skewed", (2, 2, 91, 1)), "width": 5},  # many chunks in one group alone
    "column-major": {"split": TALL, "width": WIDTH, "layout": LAYOUTS["column-major"]},
    "no-unit-stride": {"split": SMALL, "width": 5, "layout": LAYOUTS["every-second-column"]},
    "wide": {"split": Split("wide", (3, 5)), "width": 66, "dtype": torch.float32},
}


@pytest.mark.parametrize("case", CANDIDATE_INPUTS)
@by_kernel(ALL)
def test_every_candidate_gives_the_same_bits(q: Quantizer, case: str, triton_path: KernelPath) -> None:
    """Also those that today's choice does not use (K26)."""
    options = dict(CANDIDATE_INPUTS[case])
    arguments = q.arguments(options.pop("split"), options.pop("width"), triton_path.device, **options)
    expected = q.reference(*arguments)
    for number, got in every_candidate(lambda number: q.function(*arguments, candidate=number), least=1):
        assert_bit_equal(got, expected, f"{case}, candidate {number}")


def _kernels() -> list[Any]:
    """All that quantise: those in Gluon are compiled on a GPU alone."""
    from kernels.fp8.blocks import quantize_blocks
    from kernels.fp8.columns import quantize_columns
    from kernels.fp8.rows import quantize_rows

    kernels = [quantize_rows, quantize_columns, quantize_blocks]
    if GPU == "cuda":
        from kernels.fp8.panels import quantize_panels
        from kernels.fp8.ring import quantize_ring

        kernels += [quantize_panels, quantize_ring]
    return kernels


def _record_launches(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Filled with the constants of each launch from now on; nothing runs any more. Triton is not asked for a kind of
    launch that came before."""
    launches: list[dict[str, Any]] = []
    kernels = _kernels()

    def record(launch: Launch, *_: Any) -> None:
        if launch.kernel in kernels:
            launches.append(launch.constants)

    monkeypatch.setattr(Launch, "__call__", record)
    return launches


@WITH_TOKENS
def test_configuration_does_not_depend_on_counts(
    q: Quantizer, triton_path: KernelPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A walk over counts of tokens and groups keeps one configuration (K41).

    Counts that are a multiple of 16 share all constants, so nothing is compiled after the first; all other
    counts may share one variant more: whether a column of codes starts on a multiple of 16 bytes belongs to the
    layout class. One token is left out: it lies both ways in memory.
    """
    launches = _record_launches(monkeypatch)

    def call(rows: int, groups: int) -> list[dict[str, Any]]:
        launches.clear()
        # Rowwise has its rows where the others have their slices.
        tall = (Split("", (48,)), rows) if q.kind == "matrix" else (shapes.random_split(rows, groups), 48)
        q.function(*q.arguments(*tall, triton_path.device))
        return list(launches)

    aligned = [call(*counts) for counts in ((64, 4), (16, 4), (48, 4), (32, 1), (80, 16), (96, 2), (4096, 3))]
    others = [call(*counts) for counts in ((63, 4), (15, 4), (33, 1), (1001, 16))]
    assert aligned[0], "no launch of a known kernel was seen"
    assert all(other == aligned[0] for other in aligned)
    assert all(other == others[0] for other in others)


@WITH_TOKENS
def test_a_walk_over_token_counts_compiles_once(q: Quantizer, gpu: torch.device) -> None:
    """The same, asked of Triton's own cache, which also tells specialisation of arguments."""

    def compiled() -> int:
        return sum(len(cache[0]) for kernel in _kernels() for cache in kernel.device_caches.values())

    def call(rows: int) -> None:
        split, width = (Split("", (2048,)), rows) if q.kind == "matrix" else (shapes.equal(rows, 4), 2048)
        q.function(*q.arguments(split, width, gpu))

    call(256)
    after_first = compiled()
    for rows in (512, 1024, 768, 4096, 640, 336, 2000, 16):
        call(rows)
    assert compiled() == after_first


# ---------------------------------------------------------------------------------------------------
# Compilation and capture


@EVERY
def test_compiles_whole_with_dynamic_tokens(q: Quantizer, compiled_path: KernelPath) -> None:
    """torch.compile(fullgraph=True), one graph for every token count."""
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("inductor" if GPU else "aot_eager")
    # Something on either side of the operator, so that its fake strides are relied on.
    compiled = torch.compile(
        lambda *arguments: tuple(
            result.view(torch.uint8).clone() if result.dtype != torch.float32 else result * 2
            for result in q.function(*arguments, **{q.flag: True})
        ),
        backend=counter,
        fullgraph=True,
        dynamic=True,
    )
    for rows in (33, 48, 57):
        split = shapes.random_split(rows, 3)
        arguments = q.arguments(split, rows + 7 if q.kind == "matrix" else WIDTH, compiled_path.device)
        got = compiled(*arguments)
        expected = q.reference(*arguments, **{q.flag: True})
        for one, other in zip(got, expected, strict=True):
            truth = other * 2 if other.dtype == torch.float32 else other.view(torch.uint8)
            torch.testing.assert_close(one, truth, rtol=0, atol=0, equal_nan=True)
            assert one.stride() == truth.clone().stride()
    assert counter.frame_count == 1, f"{counter.frame_count} graphs for three token counts"


@EVERY
def test_replays_in_a_cuda_graph(q: Quantizer, gpu: torch.device) -> None:
    """Captured once, right for other data and other offsets, after the allocator was used by others (K33)."""
    if gpu.type != "cuda":
        pytest.skip("needs CUDA graphs: this device is no CUDA or HIP device")
    first = q.arguments(Split("", (700, 0, 300), unused=24), 192, gpu)
    second = q.arguments(Split("", (0, 1000, 1), unused=23), 192, gpu)
    static = tuple(tensor.clone() for tensor in first)
    q.function(*static)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = q.function(*static)
    for arguments in (first, second, first):
        for target, source in zip(static, arguments, strict=True):
            target.copy_(source)
        churn = [torch.full((1 << 20,), torch.nan, device=gpu) for _ in range(8)]
        del churn
        for result in results:
            result.view(torch.uint8).fill_(0x7F)
        graph.replay()
        assert_bit_equal(results, q.reference(*arguments))


@EVERY
def test_streams_do_not_disturb_each_other(q: Quantizer, gpu: torch.device) -> None:
    """Two streams at a time: no workspace is shared between calls."""
    if gpu.type != "cuda":
        pytest.skip("needs CUDA streams: this device is no CUDA or HIP device")
    sides = [q.arguments(Split("", (2000, 0, 96)), 512, gpu) for _ in range(2)]
    expected = [q.reference(*arguments) for arguments in sides]
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    results: list[list[Tensors]] = [[], []]
    for _ in range(20):
        for side, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                results[side].append(q.function(*sides[side]))
    torch.cuda.synchronize()
    for side in (0, 1):
        for got in results[side]:
            assert_bit_equal(got, expected[side])


# ---------------------------------------------------------------------------------------------------
# More than 2^31 elements, on a GPU with the memory. Input offsets alone: test_quantize_edges.py, anywhere.

LARGE_ROWS, LARGE_WIDTH = 262_400, 8_192
LARGE_WEIGHT = (52, 8_192, 5_120)
NEEDED_BYTES = 60 << 30


@EVERY
def test_more_than_two_to_the_31_elements(q: Quantizer, gpu: torch.device) -> None:
    """Codes past 2^31: compared where offsets wrap, slice by slice, since the reference needs fp32 copies."""
    free = torch.cuda.mem_get_info()[0] if gpu.type == "cuda" else 0
    if free < NEEDED_BYTES:
        pytest.skip(f"needs {NEEDED_BYTES >> 30} GiB of free device memory: {free >> 30} GiB are free")
    if q.kind == "weight":
        experts, outer, inner = LARGE_WEIGHT
        w = torch.randn(experts, outer, inner, dtype=torch.bfloat16, device=gpu).mT
        got = q.function(w)
        for expert in (0, 50, 51):  # the last two lie on either side of 2^31
            expected = q.reference(w[expert : expert + 1])
            _assert_equal_part(tuple(result[expert : expert + 1] for result in got), expected, f"expert {expert}")
        return
    x = torch.randn(LARGE_ROWS, LARGE_WIDTH, dtype=torch.bfloat16, device=gpu)
    if q.kind == "matrix":
        codes, scales = q.function(x)
        tail = slice(LARGE_ROWS - 1024, None)  # past element 2^31
        _assert_equal_part((codes[tail], scales[tail]), q.reference(x[tail]), "the last rows")
        return
    split = Split("large", (LARGE_ROWS - 2000, 1999))
    offs = split.offs(gpu)
    narrow = x[:, -64:]  # codes of the last columns lie past 2^31
    narrow_t = narrow.t()
    if q.kind == "grouped-transposed":
        codes, scales = q.function(x.t(), offs)
        expected = q.reference(narrow_t, offs)
        got = codes[-64:], scales.view(2, -1)[:, -64:].flatten()
        _assert_equal_part(got, expected, "the last rows of the transpose")
        return
    results = q.function(x, narrow, offs) if q.kind == "dual" else q.function(x, offs)
    codes, scales = results[-2:] if q.name.startswith("rowwise_") else results[:2]
    expected = fp8.reference.quantize_colwise_per_group(narrow, offs)
    got = codes[:, -64:], scales.view(2, -1)[:, -64:].flatten()
    _assert_equal_part(got, expected, "the last columns")


def _assert_equal_part(got: Tensors, expected: Tensors, because: str) -> None:
    """Bytes alone: a part of a tensor has the strides of the whole."""
    for one, other in zip(got, expected, strict=True):
        same = one.view(torch.uint8) == other.view(torch.uint8) if one.dtype != torch.float32 else one == other
        assert same.all(), f"{because}: {(~same).sum().item()} of {same.numel()} differ"
