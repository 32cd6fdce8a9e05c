"""What a dispatch mode sees of a call: host reads with their line, copies with their bytes, tensors alive."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from perfguard.measure.devices import operators
from perfguard.measure.devices.operators import of_call

X = torch.arange(12.0).reshape(3, 4)
MASK = X > 5


def reads(call: Callable[[], Any]) -> list[str]:
    return [wait.name for wait in of_call(call).waits]


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: X.sum().item(), ["aten._local_scalar_dense"]),
        (lambda: int(X.sum()), ["aten._local_scalar_dense"]),
        (lambda: 1 if X.sum() > 0 else 2, ["aten._local_scalar_dense"]),
        (lambda: X.tolist(), ["Tensor.tolist"]),
        (lambda: X.numpy(), ["Tensor.numpy"]),
        (lambda: torch.nonzero(X), ["aten.nonzero"]),
        (lambda: X[MASK], ["aten.index"]),
        (lambda: X.masked_select(MASK), ["aten.masked_select"]),
        (lambda: torch.unique(X), ["aten._unique2"]),
        (lambda: torch.equal(X, X), ["aten.equal"]),
        (lambda: X.clone().masked_fill_(MASK, 0), []),
        (lambda: X.clone().index_put_((MASK,), torch.zeros(())), []),  # one value fills: no count is needed
        (lambda: X[torch.tensor([0, 2])], []),
        (lambda: X.sum(0) * 2, []),
        (lambda: X.shape[0] + X.stride(0), []),
    ],
)
def test_reads_of_tensor_data(call: Callable[[], Any], names: list[str]) -> None:
    assert reads(call) == names


def test_inference_mode_shows_the_same_operators_copies_and_reads() -> None:
    """Autograd, which splits composite operators, is off there."""
    x = torch.ones(4, 4)

    def call() -> None:
        x.t().contiguous().contiguous()
        x.to(torch.float64).to(torch.float64)
        x.t().reshape(16)
        assert torch.nn.functional.linear(x, x).sum().item() == 64

    alone = of_call(call)
    with torch.inference_mode():
        inferred = of_call(call)
    assert (inferred.launches, inferred.copies, inferred.waits) == (alone.launches, alone.copies, alone.waits)
    assert (len(alone.copies), len(alone.waits)) == (3, 1)


def test_the_line_of_python_is_the_innermost_of_the_user_s() -> None:
    def inner() -> float:
        return float(X.sum())

    (wait,) = of_call(lambda: inner()).waits
    file, line, where, function = wait.place.replace(":", " ").split()
    assert (Path(file).name, where, function) == (Path(__file__).name, "in", "inner")
    assert Path(__file__).read_text().splitlines()[int(line) - 1].strip() == "return float(X.sum())"


INSIDE: dict[str, Callable[[torch.Tensor], object]] = {
    "int": lambda x: int(x[-1, -1]),
    "item": lambda x: x.sum().item(),
    "tolist": lambda x: x.tolist(),
    "bool": lambda x: bool((x > 0).any()),
    "if": lambda x: 1 if (x > 0).any() else 2,
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 5],
    "copy": lambda x: x.t().contiguous().exp(),
    "shape": lambda x: x.shape[0] + x.stride(0),
}


@torch.library.custom_op("perfguard_tests::inside", mutates_args=())
def inside(x: torch.Tensor, how: str) -> torch.Tensor:
    INSIDE[how](x)
    return x + 1


@inside.register_fake
def _(x: torch.Tensor, how: str) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("perfguard_tests::around", mutates_args=())
def around(x: torch.Tensor, how: str) -> torch.Tensor:
    doubled: torch.Tensor = inside(x, how) * 2
    return doubled


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    return inside(grad.contiguous(), ctx.how) * 2, None


around.register_autograd(_backward, setup_context=lambda ctx, inputs, output: setattr(ctx, "how", inputs[1]))

LIBRARY: Any = torch.library.Library("perfguard_tests", "FRAGMENT")  # type: ignore[no-untyped-call]
LIBRARY.define("registered(Tensor x) -> Tensor")
LIBRARY.impl("registered", lambda x: x * x.sum().item(), "CPU")

READS_INSIDE = [
    ("int", ["aten._local_scalar_dense"]),
    ("item", ["aten._local_scalar_dense"]),
    ("tolist", ["Tensor.tolist"]),
    ("bool", ["aten._local_scalar_dense"]),
    ("if", ["aten._local_scalar_dense"]),
    ("nonzero", ["aten.nonzero"]),
    ("mask", ["aten.index"]),
    ("copy", []),
    ("shape", []),
]


@pytest.mark.parametrize(("how", "names"), READS_INSIDE)
def test_reads_inside_a_custom_operator(how: str, names: list[str]) -> None:
    found = of_call(lambda: inside(X, how))
    assert [wait.name for wait in found.waits] == names
    assert (found.launches, found.copies) == (["perfguard_tests.inside"], [])
    assert found.tensor_bytes == 48  # what the operator returns, and not its temporaries
    assert all(Path(__file__).name in wait.place for wait in found.waits)


def test_reads_inside_custom_operators_of_a_backward_pass_and_of_each_other() -> None:
    x = X.clone().requires_grad_()
    found = of_call(lambda: around(x, "int"))
    assert [wait.name for wait in found.waits] == ["aten._local_scalar_dense"]
    assert found.launches == ["perfguard_tests.around"]
    y = around(x, "shape")
    y.grad_fn.how = "mask"
    found = of_call(lambda: torch.autograd.grad(y, x, X))
    assert [wait.name for wait in found.waits] == ["aten.index"]
    assert found.launches == ["perfguard_tests.inside", "aten.mul.Tensor"]


def test_reads_inside_an_operator_that_a_library_registered() -> None:
    (wait,) = of_call(lambda: torch.ops.perfguard_tests.registered(X)).waits
    assert wait.name == "aten._local_scalar_dense"


def test_a_custom_operator_that_fails_leaves_no_mode_behind() -> None:
    with pytest.raises(KeyError):
        of_call(lambda: inside(X, "no such key"))
    assert not _get_current_dispatch_mode_stack()
    assert reads(lambda: inside(X, "int")) == ["aten._local_scalar_dense"]


def test_a_compiled_call_of_a_custom_operator_compiles_as_ever() -> None:
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append([node.name for node in graph.graph.nodes])
        return graph

    found = of_call(lambda: torch.compile(lambda x: inside(x, "int").neg(), backend=backend)(X))
    assert [len(graph) for graph in graphs] == [4]
    assert [wait.name for wait in found.waits] == ["aten._local_scalar_dense"]


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_higher_order_operator_is_one_entry(wrapped: bool) -> None:
    def branch(x: torch.Tensor) -> object:
        return torch.ops.higher_order.cond(torch.tensor(True), torch.neg, torch.abs, (x,))

    INSIDE["branch"] = branch
    found = of_call(lambda: inside(X, "branch") if wrapped else branch(X))
    assert found.launches[-1] == ("perfguard_tests.inside" if wrapped else "higher_order.cond")


class Kernel:
    """As Triton's interpreter launches one: by copies and reads of its own."""

    fn = SimpleNamespace(__name__="_scale")

    def run(self, x: torch.Tensor, *, grid: object, warmup: bool) -> None:
        if not warmup:
            x.clone().mul_(2).tolist()

    def __call__(self, x: torch.Tensor) -> None:
        self.run(x, grid=(1,), warmup=False)


@torch.library.custom_op("perfguard_tests::interpreted", mutates_args=())
def interpreted(x: torch.Tensor) -> torch.Tensor:
    Kernel()(x)
    return x + 1


def test_a_launch_in_tritons_interpreter_is_one_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "INTERPRETED", SimpleNamespace(loaded=lambda: Kernel))
    found = of_call(lambda: (torch.empty_like(X), Kernel()(X), X.clone()))  # type: ignore[func-returns-value]
    assert found.launches == ["aten.empty_like", "triton._scale", "aten.clone"]
    assert ([each.name for each in found.copies], found.waits) == (["aten.clone"], [])
    found = of_call(lambda: interpreted(X))
    assert (found.launches, found.waits) == (["perfguard_tests.interpreted"], [])
    assert of_call(lambda: X.sum().item()).launches == ["aten.sum", "aten._local_scalar_dense"]


@pytest.mark.parametrize(
    ("call", "names", "count"),
    [
        (lambda: X.t().contiguous(), ["aten.clone"], 48),
        (lambda: X.bfloat16(), ["aten._to_copy"], 24),
        (lambda: torch.empty(3, 4).copy_(X), ["aten.copy_"], 48),
        (lambda: X.contiguous(), [], 0),  # is contiguous
        (lambda: X.reshape(4, 3), [], 0),
    ],
)
def test_copies_and_their_bytes(call: Callable[[], Any], names: list[str], count: int) -> None:
    found = of_call(call).copies
    assert ([copy.name for copy in found], sum(copy.bytes for copy in found)) == (names, count)


def test_tensors_alive_at_once() -> None:
    def peak(call: Callable[[], Any]) -> int | None:
        return of_call(call).tensor_bytes

    size = 1 << 12
    x = torch.ones(size)
    assert peak(lambda: x.neg()) == 4 * size
    assert peak(lambda: x.neg().abs()) == 8 * size
    assert peak(lambda: x.neg().neg_()) == 4 * size
    assert peak(lambda: x.view(2, -1)[0]) == 0  # views of what was there
    assert peak(lambda: [x.neg() for _ in range(3)]) == 12 * size
    assert peak(lambda: [x.neg().sum() for _ in range(3)]) == 4 * size + 12
    assert peak(lambda: x.neg().repeat(3)[:1]) == 16 * size
    kept = x.clone().requires_grad_()  # by autograd
    assert peak(lambda: kept.exp().sin().cos()) == 12 * size
    assert peak(lambda: x.exp().sin().cos()) == 8 * size


def test_tensor_is_left_as_it_was() -> None:
    before = dict(vars(torch.Tensor))
    with pytest.raises(ZeroDivisionError):
        of_call(lambda: 1 / 0)
    assert dict(vars(torch.Tensor)) == before
