"""Operators that assert on a GPU are refused as the same operators refuse on a CPU, before they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from perfguard.tensors import asserted

X, Y = torch.rand(4, 6), torch.zeros(3, 6)


def rows(*numbers: int) -> Tensor:
    return torch.tensor(numbers)


def columns(*numbers: int) -> Tensor:
    return rows(*numbers).expand(4, len(numbers))


# name: what runs, values that it takes, values that it refuses
INDEXED: dict[str, tuple[Callable[..., Any], list[Any], list[Any]]] = {
    "embedding": (F.embedding, [(rows(0, 3), X)], [(rows(0, 4), X), (rows(-1), X)]),
    "embedding_bag": (lambda i: F.embedding_bag(i[None], X), [(rows(3),)], [(rows(4),)]),
    "index_select": (lambda i: X.index_select(1, i), [(rows(0, 5),)], [(rows(6),), (rows(-1),)]),
    "gather": (lambda i: X.gather(1, i), [(columns(5),), (columns(0)[:, :0],)], [(columns(6),), (columns(-1),)]),
    "scatter": (lambda i: X.scatter(1, i, 1.0), [(columns(5),)], [(columns(6),)]),
    "scatter_add_": (lambda i: X.clone().scatter_add_(1, i, torch.ones(4, 1)), [(columns(5),)], [(columns(6),)]),
    "scatter_reduce": (lambda i: X.scatter_reduce(1, i, X, "amax"), [(columns(5),)], [(columns(6),)]),
    "index_add": (lambda i: X.index_add(0, i, Y), [(rows(0, 1, 3),)], [(rows(0, 1, 4),)]),
    "index_copy_": (lambda i: X.clone().index_copy_(0, i, Y), [(rows(0, 1, 3),)], [(rows(0, 1, 4),)]),
    "index_fill": (lambda i: X.index_fill(0, i, 1.0), [(rows(3, -4),)], [(rows(4),), (rows(-5),)]),
    "index": (lambda i: X[i], [(rows(3, -4),)], [(rows(4),), (rows(-5),)]),
    "index of the second": (lambda i: X[:, i], [(rows(5),)], [(rows(6),)]),
    "index behind a mask": (lambda i: X[None][X[None, :, 0] >= 0, i], [(rows(5),)], [(rows(6),)]),
    "index_put_": (lambda i: X.clone().index_put_((i,), torch.tensor(1.0)), [(rows(3),)], [(rows(4),)]),
    "take": (lambda i: X.take(i), [(rows(23, -24),)], [(rows(24),)]),
    "labels of uint8": (lambda t: F.cross_entropy(X, t.byte()), [(rows(0, 5, 1, 1),)], [(rows(0, 6, 1, 1),)]),
    "cross_entropy": (lambda t, **o: F.cross_entropy(X, t, **o), [(rows(0, 5, -100, 1),)], [(rows(0, 6, 1, 1),)]),
    "another label that is ignored": (
        lambda t: F.cross_entropy(X, t, ignore_index=0), [(rows(0, 5, 1, 1),)], [(rows(0, 5, -100, 1),)],
    ),
    "cross_entropy of pixels": (
        lambda t: F.cross_entropy(X.T[None], t[None]), [(rows(5, 0, 1, 1),)], [(rows(6, 0, 1, 1),)],
    ),
    "multinomial": (lambda p: p.multinomial(1), [(X,)], [(X - 1,), (X / 0,), (X * 0,)]),
    "bernoulli": (torch.bernoulli, [(X,)], [(X + 1,), (-X,)]),
    "bernoulli_": (lambda p: torch.full_like(X, 7.0).bernoulli_(p), [(X,), (0.5,)], [(X + 1,)]),
    "binary_cross_entropy": (lambda p: F.binary_cross_entropy(p, X), [(X,)], [(X + 1,), (X - 1,)]),
    "assert": (torch._assert_async, [(torch.tensor(True),)], [(torch.tensor(False),)]),
}  # fmt: skip


class Refused(asserted._Checked):
    """Notes what is refused, and lets torch decide."""

    refused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            asserted.refuse_asserted(func, args, kwargs or {})
        except (IndexError, ValueError):
            self.refused = True
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", INDEXED)
def test_a_gpu_would_assert_what_a_cpu_refuses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asserted, "_is_free", lambda tensor: not tensor.numel())
    run, taken, refused = INDEXED[name]
    for args in taken:
        with Refused() as mode:
            run(*args)
        assert not mode.refused, args
    for args in refused:
        with Refused() as mode, pytest.raises((IndexError, RuntimeError)):
            run(*args)
        assert mode.refused, args
        with asserted._Checked(), pytest.raises((IndexError, ValueError)):
            run(*args)


def test_operators_that_take_functions_run() -> None:
    with asserted._Checked():
        torch.cond(torch.tensor(True), torch.sin, torch.cos, (X,))


def test_nothing_is_checked_without_a_gpu() -> None:
    with asserted.asserted_on_the_host() as mode:
        assert mode is None or torch.cuda.is_available()
