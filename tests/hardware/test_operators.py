"""What a dispatch mode sees of a call: host reads with their line, copies with their bytes, tensors alive."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from perfguard.hardware.activity import Activity
from perfguard.hardware.operators import of_call

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


def test_the_line_of_python_is_the_innermost_of_the_user_s() -> None:
    def inner() -> float:
        return float(X.sum())

    (wait,) = of_call(lambda: inner()).waits
    file, line, where, function = wait.place.replace(":", " ").split()
    assert (Path(file).name, where, function) == (Path(__file__).name, "in", "inner")
    assert Path(__file__).read_text().splitlines()[int(line) - 1].strip() == "return float(X.sum())"


class Reading(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad * 2 if grad.sum() > -1 else grad


def test_reads_of_a_backward_pass() -> None:
    x = X.clone().requires_grad_()
    y = Reading.apply(x).sum()
    (wait,) = of_call(lambda: torch.autograd.grad(y, x)).waits
    assert wait.place.endswith(" in backward")


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


def test_what_autograd_keeps_is_alive() -> None:
    x = torch.ones(1 << 12, requires_grad=True)
    assert of_call(lambda: x.exp().sin().cos()).tensor_bytes == 3 * (4 << 12)
    assert of_call(lambda: x.detach().exp().sin().cos()).tensor_bytes == 2 * (4 << 12)


def test_tensor_is_left_as_it_was() -> None:
    before = dict(vars(torch.Tensor))
    with pytest.raises(ZeroDivisionError):
        of_call(lambda: 1 / 0)
    assert dict(vars(torch.Tensor)) == before


def test_ten_calls_see_the_same() -> None:
    def call() -> torch.Tensor:
        return X[MASK].t().contiguous().exp() * X.sum().item()

    assert len({repr(of_call(call)) for _ in range(10)}) == 1
    assert isinstance(of_call(call), Activity)
