"""Poisoned memory: what is filled, with what, and that nothing stays patched."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllocMixin

from perfguard.check.memory import ALLOCATORS, CODES, LARGE, RAW_BYTES, VALUES, Canaries, Value, fill, poisoned, recycle
from perfguard.check.numerics.sums import FP8_DTYPES

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def allocations() -> list[torch.Tensor]:
    """One tensor from each patched function; like the first they are 4 x 8."""
    like = torch.zeros(4, 8)
    return [
        torch.empty(4, 8),
        torch.empty((4, 8), dtype=torch.float32),
        torch.empty_like(like),
        torch.empty_strided((4, 8), (1, 4)),
        torch.empty_permuted((4, 8), (1, 0)),
        like.new_empty(4, 8),
        like.new_empty_strided((4, 8), (16, 2)),
    ]


def test_every_allocator_is_filled_and_the_innermost_context_wins() -> None:
    with poisoned("nan"):
        assert all(bool(tensor.isnan().all()) for tensor in allocations())
        for value, filled in (("large", LARGE), ("zero", 0)):
            with poisoned(value):  # type: ignore[arg-type]
                assert all(bool((tensor == filled).all()) for tensor in allocations())
        assert bool(torch.empty(4).isnan().all())


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, *CODES, torch.bool, torch.complex64], ids=str)
def test_every_dtype_gets_its_pattern(dtype: torch.dtype, value: Value) -> None:
    with poisoned(value):
        tensor = torch.empty(3, 5, dtype=dtype)
    if value == "zero":
        assert bool((tensor.view(torch.uint8) == 0).all())
    elif dtype in FLOATS or dtype in CODES or dtype.is_complex:
        wide = tensor.to(torch.complex64) if dtype.is_complex else tensor.float()
        assert bool(wide.isnan().all() if value == "nan" else wide.isfinite().all())
        if value == "large":
            assert float(wide.abs().min()) >= 200
    elif dtype is torch.bool:
        assert bool(tensor.all())
    else:
        assert int(tensor.min()) > torch.iinfo(dtype).max // 4
        for seen_as in (torch.float32, torch.bfloat16, torch.float8_e4m3fn):  # buffers that are viewed as floats later
            if value == "nan" and dtype.itemsize >= seen_as.itemsize:
                assert bool(tensor[0].clone().view(seen_as).float().isnan().any())


@pytest.mark.parametrize("dtype", FLOATS + FP8_DTYPES[:2], ids=str)
def test_raw_bytes_are_what_they_claim_in_every_ieee_float(dtype: torch.dtype) -> None:
    raw = torch.full((16,), RAW_BYTES["nan"], dtype=torch.uint8).view(dtype)
    assert bool(raw.float().isnan().all())
    large = torch.full((16,), RAW_BYTES["large"], dtype=torch.uint8).view(dtype).double()
    assert bool(large.isfinite().all())
    assert float(large.min()) > 200


def test_everything_is_restored_also_after_an_exception() -> None:
    before = [getattr(owner, name) for owner, name in ALLOCATORS]
    inherited = ["new_empty" in vars(torch.Tensor)]
    with pytest.raises(RuntimeError, match="on purpose"), poisoned("nan"):
        raise RuntimeError("on purpose")
    assert [getattr(owner, name) for owner, name in ALLOCATORS] == before
    assert ["new_empty" in vars(torch.Tensor)] == inherited


def test_calls_that_ask_for_more_than_memory_still_work() -> None:
    out = torch.ones(4)
    with poisoned("large"):
        leaf = torch.empty(4, requires_grad=True)
        assert leaf.is_leaf
        assert leaf.requires_grad
        assert torch.empty(0).numel() == 0
        assert torch.empty(4, out=out) is out
        assert torch.empty(4, device="meta").device.type == "meta"
        overlapping = torch.empty_strided((4, 3), (0, 1))
    assert float(overlapping[0, 0]) == LARGE
    mine = torch.zeros(4)
    with poisoned("nan", Canaries()):  # a tensor that the caller brings is the one that comes back
        assert torch.empty(4, out=mine) is mine
    assert bool(mine.isnan().all())
    base = torch.zeros(6, 8)
    fill(base[1::2, ::3].t(), "large")  # and nothing beside it
    assert int((base != 0).sum()) == 9


def test_buffers_that_fsdp_resizes_have_no_guards() -> None:
    """It frees them by a size of 0 and takes back what the tensor alone needs."""
    with poisoned("nan", Canaries()):
        gathered = DefaultAllocMixin().allocate((16,), dtype=torch.float32, device=torch.device("cpu"))
        other = torch.empty(16)
    assert bool(gathered.isnan().all())
    assert gathered.untyped_storage().nbytes() == 64 < other.untyped_storage().nbytes()


def test_operators_of_users_are_poisoned() -> None:
    @torch.library.custom_op("perfguard_test_poison::forgets", mutates_args=())
    def forgets(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    with poisoned("nan"):
        assert bool(forgets(torch.ones(3)).isnan().all())


def test_compiled_code_is_left_alone_and_recompiled_once_at_most() -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, example: object) -> object:
        graphs.append(graph)
        return graph.forward

    def fn(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(x.shape)
        out.copy_(x)
        return out + x.new_empty(x.shape).zero_()

    torch.compiler.reset()
    compiled = torch.compile(fn, fullgraph=True, backend=backend)
    x = torch.arange(3.0)
    for _ in range(2):
        assert torch.equal(compiled(x), x)
        for value in VALUES:
            with poisoned(value):
                assert torch.equal(compiled(x), x)
    assert len(graphs) <= 2
    assert not any("fill" in str(node.target) for graph in graphs for node in graph.graph.nodes)
    torch.compiler.reset()


def test_recycled_blocks_may_be_large_or_empty() -> None:
    recycle([0, 64, 64, 4096], torch.device("cpu"), "nan")
    recycle([1 << 62], torch.device("cpu"), "nan")  # nobody has so much: left out
