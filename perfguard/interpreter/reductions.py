"""Reductions and scans over whole blocks, with any function that combines two elements.

Triton's interpreter calls such a function for each element. It has to be associative to run on a GPU, so that it is
called on halves of blocks here: neighbours are combined, and in a scan elements at doubled distances, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from perfguard._compat.triton_interpreter import COMBINES, HANDLE
from perfguard.interpreter.builder import as_type, floats
from perfguard.interpreter.formats import Array

Combine = Callable[..., Any]

_Handle = HANDLE.get()
_standard = COMBINES.get()


def _known(language: Any) -> dict[Any, Any]:
    """Combining function -> NumPy's reduction. Maxima and minima ignore NaN, which is Triton's default."""
    names = {
        "_sum_combine": np.add,
        "_prod_combine": np.multiply,
        "_xor_combine": np.bitwise_xor,
        "_or_combine": np.bitwise_or,
        "_elementwise_max": np.fmax,
        "_elementwise_min": np.fmin,
    }
    return {getattr(language, name): ufunc for name, ufunc in names.items() if hasattr(language, name)}


_UFUNCS = _known(_standard)
_CUMULATIVE = {kind: ufunc for kind, ufunc in _UFUNCS.items() if ufunc in (np.add, np.multiply)}
_ARG_REDUCTIONS = {
    getattr(_standard, f"_arg{name}_combine_tie_break_{tie}", None): place
    for name, place in (("max", np.argmax), ("min", np.argmin))
    for tie in ("left", "fast")
}


def reduced(operation: Any, given: Any) -> Any:
    """The replacement of `ReduceOps.apply_impl`."""
    inputs, axis = operation.unravel(given, operation.axis)
    outputs: list[Array] | None
    ufunc = _UFUNCS.get(operation.combine_fn)
    if ufunc is not None and len(inputs) == 1:
        numbers = _wide(inputs[0].handle)
        outputs = [(np.sum if ufunc is np.add else ufunc.reduce)(numbers, axis=axis)]
    elif (outputs := _arg_reduced(operation.combine_fn, inputs, axis)) is None:
        outputs = _tree(_combine_of(operation), inputs, axis)
    made = []
    for output, each in zip(outputs, inputs, strict=True):
        shaped = output
        if operation.keep_dims:
            rank = len(given[0].handle.data.shape) if operation.axis is None else 0
            shaped = output.reshape((1,) * rank) if rank else np.expand_dims(output, axis)
        made.append(_tensor(operation, shaped, each.dtype))
    return made


def _arg_reduced(combine: Any, inputs: Sequence[Any], axis: int) -> list[Array] | None:
    """The first largest or smallest element, and its index; None for another function, and for inputs with NaN, whose
    index depends on the order of combination."""
    find = _ARG_REDUCTIONS.get(combine)
    if find is None or np.isnan(numbers := floats(inputs[0].handle)).any():
        return None
    at = np.expand_dims(find(numbers, axis=axis), axis)
    indices = inputs[1].handle.data
    return [np.take_along_axis(each, at, axis).squeeze(axis) for each in (numbers, indices)]


def scanned(operation: Any, given: Any) -> Any:
    """The replacement of `ScanOps.apply_impl`."""
    axis = operation.axis
    numbers = [_wide(each.handle) for each in given]
    if operation.reverse:
        numbers = [np.flip(each, axis) for each in numbers]
    ufunc = _CUMULATIVE.get(operation.combine_fn)
    if ufunc is not None:
        outputs = [ufunc.accumulate(numbers[0], axis=axis)]
    else:
        outputs = _doubling(_combine_of(operation), numbers, [each.dtype for each in given], axis)
    if operation.reverse:
        outputs = [np.ascontiguousarray(np.flip(each, axis)) for each in outputs]
    return [_tensor(operation, each, of.dtype) for each, of in zip(outputs, given, strict=True)]


def _wide(handle: Any) -> Array:
    """Numbers to add up. float16 is widened, since NumPy's order of summation errs more than a GPU's."""
    numbers = floats(handle)
    return numbers.astype(np.float32) if numbers.dtype == np.float16 else numbers


def _tensor(operation: Any, numbers: Array, dtype: Any) -> Any:
    return operation.to_tensor(as_type(np.asarray(numbers), dtype), dtype)


def _combine_of(operation: Any) -> Combine:
    """The combining function, rewritten like a kernel, so that `a and b` works on blocks."""
    combine: Combine = operation.combine_fn.rewrite()
    return combine


def _tree(combine: Combine, inputs: Sequence[Any], axis: int) -> list[Array]:
    blocks = [np.moveaxis(floats(each.handle), axis, 0) for each in inputs]
    dtypes = [each.dtype for each in inputs]
    while len(blocks[0]) > 1:  # Sizes are powers of two.
        blocks = _applied(combine, [each[0::2] for each in blocks], [each[1::2] for each in blocks], dtypes)
    return [each[0] for each in blocks]


def _doubling(combine: Combine, numbers: Sequence[Array], dtypes: Sequence[Any], axis: int) -> list[Array]:
    blocks = [np.moveaxis(each, axis, 0) for each in numbers]
    distance = 1
    while distance < len(blocks[0]):
        before = [np.concatenate((each[:distance], each[:-distance])) for each in blocks]
        later = _applied(combine, before, blocks, dtypes)
        blocks = [np.concatenate((each[:distance], new[distance:])) for each, new in zip(blocks, later, strict=True)]
        distance *= 2
    return [np.moveaxis(each, 0, axis) for each in blocks]


def _applied(combine: Combine, left: Sequence[Array], right: Sequence[Array], dtypes: Sequence[Any]) -> list[Array]:
    """The results of a function on two blocks; element by element if it branches on their values."""
    from triton import language

    def tensor(numbers: Array, dtype: Any) -> Any:
        shape = list(numbers.shape)
        kind = dtype if numbers.size == 1 else language.block_type(dtype, shape)
        return language.tensor(_Handle(as_type(np.ascontiguousarray(numbers), dtype), dtype), kind)

    arguments = [tensor(each, dtype) for side in (left, right) for each, dtype in zip(side, dtypes, strict=True)]
    truth, language.tensor.__bool__ = language.tensor.__bool__, _truth_of_one
    try:
        made = combine(*arguments)
    except _BranchesOnBlocks:
        rows, others = ([each.reshape(-1, 1) for each in side] for side in (left, right))
        pairs = (([each[at] for each in rows], [each[at] for each in others]) for at in range(left[0].size))
        elements = [_applied(combine, *pair, dtypes) for pair in pairs]
        return [np.concatenate(each).reshape(left[0].shape) for each in zip(*elements, strict=True)]
    finally:
        language.tensor.__bool__ = truth
    results = made if isinstance(made, tuple) else (made,)
    return [
        np.broadcast_to(floats(each.handle) if isinstance(each, language.tensor) else np.asarray(each), side.shape)
        for each, side in zip(results, left, strict=True)
    ]


class _BranchesOnBlocks(Exception):
    """A combining function asked whether a block is true: on a GPU it sees two elements."""


def _truth_of_one(asked: Any) -> bool:
    if asked.handle.data.size > 1:
        raise _BranchesOnBlocks
    return bool(asked.handle.data)
