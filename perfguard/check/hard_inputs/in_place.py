"""Other values in the memory of tensors, and calls whose results are not judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch

from perfguard._compat import torch_utils
from perfguard.check.hard_inputs.values import takes_values
from perfguard.check.numerics.procedure import LeftOut, Run, differentiated
from perfguard.check.numerics.trial import distinct
from perfguard.model.errors import is_out_of_memory
from perfguard.tensors.autograd_graph import has_storage, tree_tensors


@contextmanager
def changed(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def put_back(parameter: torch.Tensor, data: torch.Tensor) -> None:
    """Give a parameter its memory back, and a new version, so that caches of its other values are invalid."""
    parameter.data = data
    with torch.no_grad():
        parameter.copy_(data.clone())


def distinct_floats(leaves: Sequence[Any]) -> list[torch.Tensor]:
    """Tensors whose values may change in place, each memory once."""
    floats = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and takes_values(leaf) and has_storage(leaf)]
    return [*{(leaf.data_ptr(), leaf.shape, leaf.stride()): leaf for leaf in floats}.values()]


def fill(tensors: Sequence[torch.Tensor]) -> None:
    """Other values in place, reversed and halved, so that positive values and powers of two remain such."""
    with torch.no_grad():
        for tensor in tensors:
            place = distinct(tensor)
            dim = next((dim for dim, size in enumerate(place.shape) if size > 1), None)
            values = place.clone() if dim is None else place.flip(dim)
            with suppress(RuntimeError):  # Elements may overlap in memory.
                place.copy_(values.mul_(0.5))


@contextmanager
def restored(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Give the tensors their values back afterwards."""
    kept = [(distinct(each), distinct(each).detach().clone()) for each in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, values in kept:
                with suppress(RuntimeError):
                    tensor.copy_(values)


@contextmanager
def filled(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Put other values in place while inside, and the given ones back afterwards."""
    with restored(tensors):
        fill(tensors)
        yield


def ignored(run: Run, *, grad: bool, writes: bool = False) -> None:
    """A call whose results are not judged, with or without a backward pass.

    Args:
        writes: whether what it writes into its inputs stays there.

    Raises:
        LeftOut: it raises. The call need not accept these values.
    """
    inputs = [] if writes else distinct_floats(torch_utils.tree_leaves((run.args, run.kwargs)))
    try:
        with restored(inputs):
            with torch.set_grad_enabled(grad):
                results = run()
            if grad:
                again = [None if each is None else each.clone() for each in run.upstream]
                differentiated(tree_tensors(results), replace(run, upstream=again))
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise LeftOut("an earlier call on other values raises") from error


def on_copies(run: Run) -> None:
    """A call without a backward pass on other values in other memory, after which a result is read.

    Raises:
        LeftOut: it raises. The call need not accept these values.
    """

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)

    args, kwargs = torch_utils.tree_map(copied, (run.args, run.kwargs))
    fill(distinct_floats(torch_utils.tree_leaves((args, kwargs))))
    try:
        with torch.set_grad_enabled(bool(run.upstream)):
            replace(run, args=args, kwargs=kwargs)()
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise LeftOut("a later call on other values raises") from error
