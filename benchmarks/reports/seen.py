"""What the `shows` part of a report looks with: operators, and what interpreted kernels load, launch and address."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class _Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func).rpartition(".")[0])
        return func(*args, **(kwargs or {}))


def operators(call: Callable[[], object], *names: str) -> int:
    """How often `call` runs operators of these names, such as `aten.mm`; forward and backward."""
    with _Operators() as seen:
        call()
    return sum(name in names for name in seen.names)


def work(call: Callable[[], object]) -> int:
    """Number of elements that the loads of interpreted kernels go over."""
    from triton.runtime.interpreter import InterpreterBuilder

    count, load = 0, InterpreterBuilder.create_masked_load

    def counted(self: Any, pointers: Any, *rest: Any) -> Any:
        nonlocal count
        count += pointers.data.size
        return load(self, pointers, *rest)

    with mock.patch.object(InterpreterBuilder, "create_masked_load", counted):
        call()
    return count


@contextlib.contextmanager
def masked_lanes_hold_nan() -> Iterator[None]:
    """Lanes that a load masks hold NaN where the kernel names no other value: Triton promises nothing of them."""
    from triton.runtime.interpreter import InterpreterBuilder

    load = InterpreterBuilder.create_masked_load

    def strict(self: Any, pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
        out = load(self, pointers, mask, other, *rest)
        if other is None and out.data.dtype.kind == "f":
            out.data[~mask.data.astype(bool)] = float("nan")
        return out

    with mock.patch.object(InterpreterBuilder, "create_masked_load", strict):
        yield


class Grids:
    """Stands for a kernel, and only notes the grid that it is launched with."""

    def __init__(self) -> None:
        self.seen: tuple[int, ...] = ()

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        self.seen = grid
        return lambda *args, **kwargs: None


def furthest(kernel: Any, program: int, x: torch.Tensor, *args: Any, **kwargs: Any) -> int:
    """The furthest element of `x`, its first argument, that the loads of this program of `kernel` name. Nothing is
    read or written: a tensor that is as long as the addresses say would take gigabytes."""
    import numpy
    from triton import language
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    found: list[int] = []

    def load(self: Any, pointers: Any, *rest: Any) -> Any:
        elements = (pointers.data.astype(numpy.int64) - x.data_ptr()) // x.element_size()
        found.append(int(elements.ravel()[numpy.abs(elements).argmax()]))
        return TensorHandle(numpy.zeros(pointers.data.shape, dtype=numpy.float32), pointers.get_element_ty())

    def number(self: Any, axis: int) -> Any:
        return TensorHandle(numpy.array([program], dtype=numpy.int32), language.int32)

    replaced: dict[str, Any] = {"create_masked_load": load, "create_get_program_id": number}
    with mock.patch.multiple(InterpreterBuilder, create_masked_store=lambda *args: None, **replaced):
        kernel[(1,)](x, *args, **kwargs)
    return max(found, key=abs)
