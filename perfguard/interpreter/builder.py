"""The builder that Triton's front end calls for each operation, which computes with NumPy like a GPU.

It extends Triton's builder, which still computes 32- and 64-bit floats, integers and shapes.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from perfguard._compat.triton_interpreter import BUILDER, HANDLE, MEMORY, NUMPY_TYPE, ROUNDING
from perfguard.interpreter.formats import CODED, FP8, Array, decoded, encoded, sum_to_odd
from perfguard.interpreter.running import RUNNING, NotInterpreted, StrictRunImpossible, line

if TYPE_CHECKING:
    _Builder: Any = object
else:
    _Builder = BUILDER.get()

_Handle = HANDLE.get()
_memory = MEMORY.get()
_ROUNDS_TO_ZERO = getattr(ROUNDING.get(), "RTZ", None)


def floats(handle: Any) -> Array:
    """The numbers of a handle; bfloat16 and 8-bit floats become float32."""
    name = handle.dtype.scalar.name
    data: Array = handle.data
    return decoded(data, name) if name in CODED and data.dtype.kind == "u" else data


def as_type(numbers: Array, scalar: Any, *, truncate: bool = False) -> Array:
    """Numbers as the data of a handle with a scalar type."""
    if scalar.name in CODED:
        return encoded(numbers, scalar.name, truncate=truncate)
    wanted = numpy_type(scalar)
    return numbers if numbers.dtype == wanted else numbers.astype(wanted)


def numpy_type(kind: Any) -> Any:
    """The NumPy type of a type's scalars; Triton builds the table of all types at each look-up."""
    name = kind.scalar.name  # A pointer's name includes that of its target.
    if name not in _numpy_types:
        _numpy_types[name] = _look_up(kind)
    return _numpy_types[name]


_look_up, _numpy_types = NUMPY_TYPE.get(), dict[str, Any]()


def _is_coded(handle: Any) -> bool:
    return handle.dtype.scalar.name in CODED and handle.data.dtype.kind == "u"


class Builder(_Builder):  # type: ignore[misc]
    """The builder of this module."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("create_", "get_")):
            raise NotInterpreted(name.removeprefix("create_"))
        raise AttributeError(name)

    # -- casts ---------------------------------------------------------------------------------------------------------

    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        scalar = dst_type.scalar
        if not (_is_coded(src) or scalar.name in CODED):
            return super().cast_impl(src, dst_type)
        return _Handle(as_type(floats(src), scalar), scalar)

    def create_fp_to_fp(self, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        scalar = dst_type.scalar
        truncate = _ROUNDS_TO_ZERO is not None and rounding_mode == _ROUNDS_TO_ZERO
        numbers = floats(src)
        if truncate and scalar.name == "fp16":
            near = numbers.astype(np.float16)
            beyond = np.abs(near.astype(numbers.dtype)) > np.abs(numbers)
            return _Handle(np.where(beyond, np.nextafter(near, np.float16(0)), near), scalar)
        return _Handle(as_type(numbers, scalar, truncate=truncate), scalar)

    def create_bitcast(self, src: Any, dst_type: Any) -> Any:
        data = src.data if src.data.flags.c_contiguous else np.ascontiguousarray(src.data)
        return super().create_bitcast(_Handle(data, src.dtype), dst_type)

    def get_bf16(self, value: Any) -> Any:
        return self.create_fp_trunc(self.get_fp32(value), self.get_bf16_ty())

    # -- arithmetic ----------------------------------------------------------------------------------------------------

    def binary_op(self, lhs: Any, rhs: Any, op: Any) -> Any:
        if lhs.data.dtype in _COMPUTED and lhs.data.dtype == rhs.data.dtype:
            output = op(lhs.data, rhs.data)
            return _Handle(output, lhs.dtype.scalar if output.dtype != np.bool_ else self.get_int1_ty())
        if op in _MODULO_2 and lhs.data.dtype == rhs.data.dtype == np.bool_:
            op = np.bitwise_xor
        if not (_is_coded(lhs) or _is_coded(rhs)) or op in _ON_BITS:
            made = super().binary_op(lhs, rhs, op)
        else:
            output = op(floats(lhs), floats(rhs))
            made = _Handle(output if output.dtype == np.bool_ else as_type(output, lhs.dtype.scalar), lhs.dtype.scalar)
        if made.data.dtype == np.bool_ and lhs.data.dtype != np.bool_:
            made.dtype = self.get_int1_ty()
        return made

    def ternary_op(self, lhs: Any, rhs: Any, other: Any, op: Any) -> Any:
        if op is np.where or not _is_coded(other):
            return super().ternary_op(lhs, rhs, other, op)
        return _Handle(as_type(op(*map(floats, (lhs, rhs, other))), other.dtype.scalar), other.dtype.scalar)

    def unary_op(self, arg: Any, op: Any) -> Any:
        if not _is_coded(arg):
            return super().unary_op(arg, op)
        return _Handle(as_type(op(floats(arg)), arg.dtype.scalar), arg.dtype.scalar)

    def create_fma(self, x: Any, y: Any, z: Any) -> Any:
        scalar = z.dtype.scalar
        if not scalar.is_floating() or z.data.dtype == np.float64:
            return super().create_fma(x, y, z)
        exact = np.multiply(floats(x), floats(y), dtype=np.float64)
        return _Handle(as_type(sum_to_odd(exact, floats(z)), scalar), scalar)

    def create_dot(self, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        left, right, scalar = floats(a), floats(b), d.dtype.scalar
        RUNNING.count("products", left.size * right.shape[-1])
        wide = np.promote_types(d.data.dtype, np.float32) if scalar.is_floating() else d.data.dtype
        product = np.matmul(left.astype(wide, copy=False), right.astype(wide, copy=False))
        return _Handle(as_type(product + floats(d), scalar), scalar)

    # -- memory --------------------------------------------------------------------------------------------------------

    def set_grid_idx(self, x: int, y: int, z: int) -> None:
        strict = RUNNING.strict
        if strict is not None and strict.backwards:
            x, y, z = (size - 1 - at for size, at in zip(self.grid_dim, (x, y, z), strict=True))
        super().set_grid_idx(x, y, z)
        RUNNING.begin_program(math.prod(self.grid_dim))

    def create_masked_load(self, ptrs: Any, mask: Any, other: Any, *rest: Any, **named: Any) -> Any:
        element = ptrs.get_element_ty()
        kind = numpy_type(element)
        lanes = _lanes(mask)
        whole = RUNNING.accessed("loads", ptrs.data, lanes)
        strict = RUNNING.strict
        # Triton (3.6 to 3.9) drops an `other` that is a single 0, because it tests its truth. The caller still has it.
        zero = other is None and ptrs.data.size == 1 and sys._getframe(1).f_locals.get("other") is not None
        RUNNING.open_lanes = RUNNING.open_lanes or (other is None and not zero and not whole)
        if zero:
            filling = np.zeros(ptrs.data.shape, dtype=kind)
        elif other is not None:
            filling = other.data
        elif not whole and strict is not None and strict.poisons is not None and strict.poisons(at := line()):
            strict.poisoned.append(at)
            filling = np.resize(_poison(element, kind), ptrs.data.shape)
        else:
            filling = np.zeros(ptrs.data.shape, dtype=kind)
        return _Handle(_memory.load(ptrs.data, lanes, filling, kind), element)

    def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        kept = _lanes(mask)
        RUNNING.accessed("stores", ptrs.data, kept)
        strict = RUNNING.strict
        if strict is not None and strict.at_once:
            strict.store(ptrs.data[kept], np.broadcast_to(value.data, ptrs.data.shape)[kept])
            return None
        return super().create_masked_store(ptrs, value, mask, *rest, **named)

    def create_atomic_cas(self, ptr: Any, *rest: Any) -> Any:
        RUNNING.accessed("atomics", ptr.data, np.ones(ptr.data.shape, dtype=bool))
        self._publish()
        return super().create_atomic_cas(ptr, *rest)

    def create_atomic_rmw(self, rmw_op: Any, ptr: Any, val: Any, mask: Any, *rest: Any) -> Any:
        RUNNING.accessed("atomics", ptr.data, mask.data)
        self._publish()
        if not _is_coded(val):
            return super().create_atomic_rmw(rmw_op, ptr, val, mask, *rest)
        # Lanes run one after the other, since two may have the same address. Triton allows only sums here.
        scalar, before = val.dtype.scalar, np.zeros(ptr.data.shape, dtype=val.data.dtype)
        numbers = np.broadcast_to(floats(val), ptr.data.shape)
        for lane in zip(*np.nonzero(mask.data), strict=True):
            at, one = ptr.data[lane].reshape(1), np.ones(1, dtype=bool)
            old = _memory.load(at, one, np.zeros(1, dtype=val.data.dtype), val.data.dtype)
            before[lane] = old[0]
            _memory.store(at, encoded(decoded(old, scalar.name) + numbers[lane], scalar.name), one)
        return _Handle(before, scalar)

    def create_atomic_store(self, *given: Any) -> None:
        super().create_atomic_store(*given)
        self._publish()

    def _publish(self) -> None:
        if RUNNING.strict is not None:
            RUNNING.strict.publish()

    def create_int_to_ptr(self, src: Any, dst_type: Any) -> Any:
        if RUNNING.strict is not None and RUNNING.strict.poisons is not None:
            raise StrictRunImpossible(f"{RUNNING.kernel}: it makes addresses of integers")
        RUNNING.spans = None
        return super().create_int_to_ptr(src, dst_type)

    # -- unsupported operations ----------------------------------------------------------------------------------------

    def create_inline_asm(self, *rest: Any) -> Any:
        raise NotInterpreted("inline assembly")

    def create_extern_elementwise(self, lib_name: Any, lib_path: Any, symbol: Any, *rest: Any) -> Any:
        raise NotInterpreted(f"{symbol} of {lib_name or 'a library'}")


# Two operands of one of these need no conversion, and their result is one of these, or a mask.
_COMPUTED = {*map(np.dtype, ("f4", "f8", "i1", "i2", "i4", "i8", "u4", "u8"))}
_MODULO_2 = {np.add, np.subtract}  # Of numbers of one bit, Triton's `int1`. NumPy's sum of two is a logical or.
_ON_BITS = {np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.left_shift, np.right_shift}


def _lanes(mask: Any) -> Array:
    """The active lanes of a mask. Loads of block pointers and descriptors pass an array (Triton 3.6)."""
    return np.asarray(mask.data).astype(bool, copy=False)


def _poison(element: Any, kind: Any) -> Array:
    """Values, one per lane, on which no correct result depends: NaN and both infinities (since a maximum ignores NaN),
    or the largest integer. Pointers stay 0."""
    if element.is_ptr():
        return np.zeros(1, dtype=kind)
    if element.is_floating():
        form = FP8.get(element.name)
        infinity = np.inf if form is None else decoded(np.array([form.largest], dtype=np.uint8), element.name)[0]
        return as_type(np.array([np.nan, infinity, -infinity], dtype=np.float32), element)
    return np.array([1 if kind.kind == "b" else np.iinfo(kind).max], dtype=kind)
