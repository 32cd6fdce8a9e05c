"""GroupedLinear and its WeightGradStore: deferred is direct, in order and in precision, and nothing is left over."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from kernels.fp8.shapes import Split
from kernels.operators import GroupedLinear, WeightGradStore
from tests.kernels.paths import KernelPath

SPLITS = (
    Split("plain", (5, 0, 9, 3)),
    Split("tail", (5, 0, 9, 3), unused=4),
    Split("one-group", (0, 0, 17, 0)),
    Split("empty", (0, 0, 0, 0), unused=3),
    Split("no-rows", (0, 0, 0, 0)),
)
IN, OUT = 16, 24


def build(device: torch.device, dtype: torch.dtype = torch.bfloat16) -> tuple[GroupedLinear, GroupedLinear]:
    """Two layers of the same weights, the first direct, the second with a store."""
    direct = GroupedLinear(4, IN, OUT, device=device, dtype=dtype)
    deferred = copy.deepcopy(direct)
    deferred.store = WeightGradStore()
    return direct, deferred


def chunk(split: Split, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> tuple[Any, ...]:
    """x, offs and the incoming gradient; what belongs to no group is NaN in x."""
    x = torch.randn(split.rows, IN, dtype=dtype)
    x[sum(split.sizes) :] = torch.nan
    return x.to(device).requires_grad_(), split.offs(device), torch.randn(split.rows, OUT).to(dtype).to(device)


def store_of(layer: GroupedLinear) -> WeightGradStore:
    assert layer.store is not None
    return layer.store


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_tail_and_empty_groups(split: Split, compiled_path: KernelPath) -> None:
    """Rows of no group are zero, in the output and in the gradient, and their NaN goes nowhere; the graph is whole."""
    for layer in build(compiled_path.device):
        x, offs, upstream = chunk(split, compiled_path.device)
        out = layer(x, offs)
        out.backward(upstream)
        used = sum(split.sizes)
        assert out.shape == (split.rows, OUT)
        assert not out[used:].any()
        assert not x.grad[used:].any()
        assert layer.weight.grad is not None
        assert layer.weight.grad.isfinite().all()
        empty = [group for group, size in enumerate(split.sizes) if size == 0]
        assert not layer.weight.grad[empty].any()


@pytest.mark.parametrize("wide", [False, True], ids=["bf16-grad", "fp32-grad"])
def test_deferred_is_direct_bit_for_bit(wide: bool, compiled_path: KernelPath) -> None:
    """Two chunks, popped in order: input gradients at once, no weight gradient before its pop, then the same bits.

    With an fp32 accumulator the sum is taken in fp32.
    """
    direct, deferred = build(compiled_path.device)
    store = store_of(deferred)
    if wide:
        for layer in (direct, deferred):
            layer.weight.grad_dtype = torch.float32
    chunks = [chunk(split, compiled_path.device) for split in SPLITS[:3]]
    expected = []
    for x, offs, upstream in chunks:
        direct(x, offs).backward(upstream)
        expected.append((x.grad.clone(), direct.weight.grad.clone()))
        x.grad = None
    for (x, offs, upstream), (dx, _) in zip(chunks, expected, strict=True):
        with store:
            deferred(x, offs).backward(upstream)
        store.flush()
        assert torch.equal(x.grad, dx)
        assert deferred.weight.grad is None
    for _, dweight in expected:
        store.pop()
        assert deferred.weight.grad.dtype == (torch.float32 if wide else torch.bfloat16)
        assert torch.equal(deferred.weight.grad, dweight)
    assert len(store) == 0
    assert store.bytes_held == 0


def test_a_wide_accumulator_keeps_small_chunks(compiled_path: KernelPath) -> None:
    """256 + 1 is 256 in bf16: a sum that was rounded before it was stored would lose every later chunk."""
    _, layer = build(compiled_path.device)
    store = store_of(layer)
    layer.weight.grad_dtype = torch.float32
    layer.weight.grad = torch.full_like(layer.weight, 256.0, dtype=torch.float32)
    x = torch.ones(4, IN, dtype=torch.bfloat16, device=compiled_path.device, requires_grad=True)
    offs = torch.arange(1, 5, dtype=torch.int32, device=compiled_path.device)
    for _ in range(8):
        with store:
            layer(x, offs).sum().backward()
        store.flush()
        store.pop()
    assert layer.weight.grad.unique().tolist() == [264.0]


def test_not_enabled_is_direct(compiled_path: KernelPath) -> None:
    direct, deferred = build(compiled_path.device)
    x, offs, upstream = chunk(SPLITS[1], compiled_path.device)
    for layer in (direct, deferred):
        layer(x, offs).backward(upstream)
    assert torch.equal(direct.weight.grad, deferred.weight.grad)
    store_of(deferred).flush()
    store_of(deferred).pop()  # nothing in it
    assert torch.equal(direct.weight.grad, deferred.weight.grad)


def test_saves_x_weight_and_offs(compiled_path: KernelPath) -> None:
    for layer in build(compiled_path.device):
        x, offs, _ = chunk(SPLITS[1], compiled_path.device)
        packed: list[torch.Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):  # noqa: B023
            layer(x, offs)
        storages = [tensor.untyped_storage().data_ptr() for tensor in packed]
        assert sorted(storages) == sorted(t.untyped_storage().data_ptr() for t in (x, layer.weight, offs))


def test_bytes_held(compiled_path: KernelPath) -> None:
    """(M, N) + (M, K) a projection; an input that two share counts once."""
    gate, up = build(compiled_path.device)[1], build(compiled_path.device)[1]
    store = up.store = store_of(gate)
    x, offs, upstream = chunk(SPLITS[0], compiled_path.device)
    with store:
        gate(x, offs).backward(upstream)
        assert store.bytes_held == 2 * 17 * (OUT + IN)
        up(x, offs).backward(upstream.clone())
    assert store.bytes_held == 2 * 17 * (2 * OUT + IN)
    store.flush()
    assert store.bytes_held == 2 * 17 * (2 * OUT + IN)
    store.pop()
    assert store.bytes_held == 0


def test_an_exception_leaves_the_store_disabled_and_empty(compiled_path: KernelPath) -> None:
    _, layer = build(compiled_path.device)
    store = store_of(layer)
    x, offs, upstream = chunk(SPLITS[0], compiled_path.device)

    def step() -> None:
        with store:
            layer(x, offs).backward(upstream)
            store.flush()
            layer(x, offs).backward(upstream)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        step()
    assert not store.enabled
    assert (len(store), store.bytes_held) == (0, 0)
    with pytest.raises(RuntimeError, match=r"^store: holds no batch; call flush\(\)"):
        store.pop()


def test_order_and_empty_batches() -> None:
    store, order = WeightGradStore(), list[int]()
    with store:
        store.put(lambda: order.append(1))
        store.put(lambda: order.append(2))
        store.flush()
        store.flush()
        store.put(lambda: order.append(3))
        store.flush()
    assert len(store) == 3
    store.pop()
    assert order == [1, 2]
    store.pop()
    assert order == [1, 2]
    store.pop()
    assert order == [1, 2, 3]
    with pytest.raises(RuntimeError, match=r"^store: holds no batch"):
        store.pop()


def test_clear_drops_everything() -> None:
    store = WeightGradStore()
    with store:
        store.put(lambda: pytest.fail("ran after clear"))
        store.flush()
        store.put(lambda: pytest.fail("ran after clear"))
        store.clear()
        store.flush()
    store.pop()
    assert len(store) == 0


def test_two_stores_do_not_meet(compiled_path: KernelPath) -> None:
    first, second = build(compiled_path.device)[1], build(compiled_path.device)[1]
    x, offs, upstream = chunk(SPLITS[0], compiled_path.device)
    with store_of(first):
        first(x, offs).backward(upstream)
        second(x, offs).backward(upstream)
    assert first.weight.grad is None
    assert second.weight.grad is not None


def test_misuse_is_named(compiled_path: KernelPath) -> None:
    store = WeightGradStore()
    with pytest.raises(RuntimeError, match=r"^store: is not enabled"):
        store.put(lambda: None)
    with store, pytest.raises(RuntimeError, match=r"^store: is enabled already"):
        store.__enter__()
    with pytest.raises(ValueError, match=r"^in_features: is 0; may be 1 or more"):
        GroupedLinear(2, 0, 4)


@pytest.mark.parametrize("hook", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_on_the_weight_are_refused(hook: str, compiled_path: KernelPath) -> None:
    """They would run before there is a gradient; without deferring they run as ever."""
    _, layer = build(compiled_path.device)
    calls: list[object] = []
    getattr(layer.weight, hook)(lambda value: calls.append(value))
    x, offs, upstream = chunk(SPLITS[0], compiled_path.device)
    layer(x, offs).backward(upstream)
    assert len(calls) == 1
    with pytest.raises(RuntimeError, match=r"^weight: has gradient hooks"), store_of(layer):
        layer(x, offs).backward(upstream)


@pytest.mark.parametrize("what", ["x", "grad"])
def test_what_changed_since_backward_is_refused(what: str, compiled_path: KernelPath) -> None:
    _, layer = build(compiled_path.device)
    store = store_of(layer)
    x, offs, upstream = chunk(SPLITS[0], compiled_path.device)
    with store:
        layer(x, offs).backward(upstream)
    store.flush()
    with torch.no_grad():
        (x if what == "x" else upstream).zero_()
    with pytest.raises(RuntimeError, match=r"^store: the layer's input, output gradient or offs was modified"):
        store.pop()


def test_compiles_without_a_store(compiled_path: KernelPath) -> None:
    torch._dynamo.reset()
    layer, _ = build(compiled_path.device)
    x, offs, upstream = chunk(SPLITS[1], compiled_path.device)
    expected = layer(x, offs)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    got = compiled(x, offs)
    assert torch.equal(got, expected)
    got.backward(upstream)
    assert layer.weight.grad is not None
