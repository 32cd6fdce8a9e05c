"""Passes on copies of their inputs: the same work on other memory, laid out alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from perfguard.measure.replay import backward, copies, forward, steps, touched_bytes, traced_step, traced_walk
from perfguard.model.call import Call
from perfguard.model.errors import DeviceError


def made(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Call:
    return Call(fn, args, reference=fn, kwargs=kwargs)


class Recorder:
    """A candidate that remembers the tensors that it was given."""

    def __init__(self) -> None:
        self.seen: list[list[torch.Tensor]] = []

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        self.seen.append(list(tensors))
        return tensors[0]


layouts = st.sampled_from(
    [
        lambda x: x,
        lambda x: x.t(),
        lambda x: x[1:, ::2],
        lambda x: x[:, 3:],
        lambda x: x[0].expand(5, -1),
        lambda x: x.reshape(-1)[7:],
        lambda x: x[:0],
        lambda x: x.view(torch.uint8).reshape(-1)[1:],
    ]
)


@given(layouts, st.sampled_from([torch.float32, torch.bfloat16, torch.float8_e4m3fn]))
def test_a_copy_has_the_values_strides_and_alignment(
    layout: Callable[[torch.Tensor], torch.Tensor], dtype: Any
) -> None:
    x = layout(torch.arange(64.0).reshape(8, 8).to(dtype))
    fn = Recorder()
    for run in copies(made(fn, x), "forward")(3):
        run()
    seen = [tensors[0] for tensors in fn.seen]
    assert seen[0].data_ptr() == x.data_ptr()
    for copy in seen[1:]:
        assert torch.equal(copy.contiguous().view(torch.uint8), x.contiguous().view(torch.uint8))
        assert (copy.shape, copy.stride(), copy.dtype) == (x.shape, x.stride(), x.dtype)
        if x.numel():
            assert copy.data_ptr() % 64 == x.data_ptr() % 64
    if x.numel():
        assert len({tensor.data_ptr() for tensor in seen}) == 3


def test_copies_share_memory_as_the_inputs_did() -> None:
    base = torch.arange(100.0)
    fn = Recorder()
    _, run = copies(made(fn, base[10:20], base[15:40], torch.ones(3)), "forward")(2)
    run()
    first, second, third = fn.seen[0]
    assert second.data_ptr() - first.data_ptr() == 5 * 4
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert third.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
    assert first.untyped_storage().data_ptr() != base.untyped_storage().data_ptr()


def test_a_small_view_of_much_memory_is_copied_alone() -> None:
    fn = Recorder()
    _, run = copies(made(fn, torch.zeros(1 << 20)[1000:1010]), "forward")(2)
    run()
    assert fn.seen[0][0].untyped_storage().nbytes() < 200


def test_nested_inputs_and_other_values_are_kept() -> None:
    def fn(pair: list[torch.Tensor], *, scale: float, shift: dict[str, torch.Tensor]) -> torch.Tensor:
        return pair[0] * scale + shift["by"]

    call = made(fn, [torch.ones(3), torch.zeros(2)], scale=2.0, shift={"by": torch.ones(3)})
    results = [run() for run in copies(call, "forward")(2)]
    assert torch.equal(results[0], results[1])  # type: ignore[arg-type]


def test_each_backward_pass_has_a_graph_and_the_same_gradients() -> None:
    x, w = torch.randn(4, 3, requires_grad=True), torch.randn(3, 2, requires_grad=True)
    call = made(lambda x, w: torch.tanh(x @ w), x, w)
    expected: Any = backward(call)()
    for run in copies(call, "backward")(3):
        for gradients in (run(), run()):  # the graph is kept
            assert all(map(torch.equal, gradients, expected))  # type: ignore[call-overload]
    assert x.grad is None


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_module_s_parameters_and_buffers_are_copied(compiled: bool, direction: Any) -> None:
    module: Any = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4).eval())
    compilations = []

    def backend(graph: Any, _inputs: Any) -> Any:
        compilations.append(graph)
        return graph.forward

    if compiled:
        module = torch.compile(module, backend=backend)
    call = made(module, torch.randn(5, 3))
    expected = (backward if direction == "backward" else forward)(call)()
    several = copies(call, direction)(3)
    for run in several:
        results = run()
        got = [results] if isinstance(results, torch.Tensor) else results
        want = [expected] if isinstance(expected, torch.Tensor) else expected
        for one, other in zip(got, want, strict=True):  # type: ignore[call-overload]
            assert torch.equal(one, other)
    assert len(compilations) == (1 if compiled else 0)  # other tensors, the same code
    assert all(parameter.grad is None for parameter in module.parameters())
    if direction == "forward":
        with torch.no_grad():
            module[0].weight.zero_() if not compiled else module._orig_mod[0].weight.zero_()
        assert not torch.equal(several[0](), several[1]())  # type: ignore[arg-type]


def test_copies_that_do_not_fit_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    call = made(Recorder(), torch.ones(10))

    def full(*args: Any, **options: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(DeviceError, match=r"^inputs: 5 copies do not fit .*cache='warm'$"):
        copies(call, "forward")(5)


def test_touched_bytes_count_shared_memory_once_and_no_repetition() -> None:
    x = torch.zeros(1000)
    assert touched_bytes(made(Recorder(), x, x[100:200]), torch.zeros(10, dtype=torch.uint8)) == 4010
    assert touched_bytes(made(Recorder(), x[:1].expand(1000)), ()) == 4
    assert touched_bytes(made(Recorder(), x[100:200]), [x[150:300], {"none": None}]) == 800
    assert touched_bytes(made(Recorder(), x[:0]), ()) == 0
    assert touched_bytes(made(torch.nn.Linear(3, 4), torch.zeros(2, 3)), torch.zeros(2, 4)) == 4 * (12 + 4 + 6 + 8)


class Counted(torch.nn.Module):
    """Adds a buffer that an entry of the walk sets, and remembers what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.load: torch.Tensor
        self.register_buffer("load", torch.zeros(3))
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.seen: list[tuple[list[float], int, bool]] = []

    def forward(self, x: torch.Tensor, candidate: int = 0) -> torch.Tensor:
        self.seen.append((self.load.tolist(), len(x), candidate == 1))
        x.detach().mul_(2)
        return x * self.weight + self.load


def walked(module: Counted) -> Call:
    def loaded() -> tuple[torch.Tensor]:
        module.load.fill_(7)
        return (torch.ones(5, 3),)

    return Call(module, (torch.ones(4, 3),), reference=module, walk=(loaded, (torch.ones(2, 3),)), mutates=(0,))


def test_both_walks_take_the_same_steps() -> None:
    module = Counted()
    call, passes = walked(module), list[str]()
    taken = steps(call)
    for step in [*taken, *taken, taken[0]]:
        step()
    compiled = module.seen[3:6]
    module.seen = []
    traced_step(call, {}, passes.append)
    traced_walk(call, passes.append)
    assert module.seen == compiled == [([0.0] * 3, 4, False), ([7.0] * 3, 5, False), ([7.0] * 3, 2, False)]
    assert passes == ["forward", "backward"] * 3


def test_what_comes_after_a_walk_finds_a_module_and_its_inputs_as_they_were() -> None:
    module = Counted()
    call = walked(module)
    traced_walk(call, lambda _: None)
    traced_step(call, {"candidate": 1}, lambda _: None)
    assert module.seen[-1] == ([0.0] * 3, 4, True)
    assert torch.equal(call.args[0], torch.ones(4, 3))
    assert module.weight.grad is None


def test_a_walk_that_raises_puts_buffers_back() -> None:
    module = Counted()
    call = Call(module, (torch.ones(4, 3),), reference=module, walk=(walked(module).walk[0], (None,)))
    with pytest.raises(TypeError):
        traced_walk(call, lambda _: None)
    assert module.load.tolist() == [0.0] * 3
