"""Makes Triton's front end much faster when it interprets, by caching work that it repeats at every operation.

Results do not change. Each function here returns the replacement of a private name. If this version of Triton lacks the
name, it stays as slow as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from perfguard._compat.private import Private
from perfguard._compat.triton_interpreter import (
    BROADCAST,
    BUILDER,
    DESCRIBE,
    HANDLE,
    LANGUAGE,
    MAKE,
    NUMPY_TYPE,
    PATCH,
    PATCH_ONE,
    PREPARE,
    SANITIZE,
    changed_by,
)
from perfguard.interpreter.builder import numpy_type

Replacement = Callable[..., Any]


def quicker(language: Any) -> Iterator[tuple[Private, Replacement]]:
    """(name, replacement) for each name that this Triton has. `language`: triton.language."""
    core = language.core
    makers: list[tuple[Private, Callable[[], Replacement]]] = [
        (NUMPY_TYPE, lambda: numpy_type),
        (DESCRIBE, lambda: _described_once(core.block_type, core.constexpr)),
        (MAKE, lambda: _counted_once(core.tensor, core.block_type)),
        (PREPARE, lambda: _prepared_once(core.tensor)),
        (BROADCAST, lambda: _broadcast_if_unequal(core.tensor)),
        (SANITIZE, _sanitized_if_asserted),
    ]
    for name, make in makers:
        if name.exists():
            yield name, make()


class Language:
    """What Triton replaces in its language, as at each launch and each call of a device function, but found once."""

    def __init__(self, language: Any) -> None:
        one = PATCH_ONE.set(_patched_directly)
        scope = PATCH.get()(SimpleNamespace(__globals__={"tl": language, "core": language.core}))
        PATCH_ONE.set(one)
        scope.set_attr(language.tensor, "__index__", _as_index)
        scope.set_attr(language.dtype, "to_ir", _itself)
        owners: dict[int, tuple[Any, dict[str, Any]]] = {}
        for owner, name in changed_by(scope):
            owners.setdefault(id(owner), (owner, {}))[1][name] = vars(owner)[name]
        scope.restore()
        self._members = []  # (owner, as it is compiled, as it is interpreted)
        for owner, after in owners.values():
            self._members.append((owner, {name: vars(owner)[name] for name in after if name in vars(owner)}, after))

    def replace(self) -> None:
        """Make the language interpreted."""
        for owner, _, after in self._members:
            _put(owner, after)

    def restore(self) -> None:
        """Make the language compiled again."""
        for owner, before, after in self._members:
            _put(owner, before)
            for name in after.keys() - before.keys():
                delattr(owner, name)


def _patched_directly(owner: Any, name: str, builtin: Any, _: Any, scope: Any) -> None:
    """Gives a function of the language its builder, without the layer that checks whether it has one."""
    function, semantic = getattr(builtin, "__wrapped__", builtin), LANGUAGE.get()

    def direct(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = semantic
        return function(*args, **kwargs)

    scope.set_attr(owner, name, direct)


def _put(owner: Any, members: dict[str, Any]) -> None:
    if isinstance(owner, ModuleType):
        vars(owner).update(members)
        return
    for name, value in members.items():
        setattr(owner, name, value)


def _as_index(self: Any) -> int:
    """A scalar as a Python number. Triton 3.6 converts an array with one element, which NumPy 2.4 refuses."""
    return int(self.handle.data.squeeze())


def _itself(self: Any, builder: Any) -> Any:
    """A scalar type, which the interpreter's builder represents by itself. Triton 3.6 and 3.7 refuse AMD's formats."""
    return self


def _described_once(block_type: Any, constexpr: Any) -> Replacement:
    """Caches the types of results, whose shapes are otherwise checked and formatted each time."""
    init = DESCRIBE.get()
    types: dict[tuple[Any, ...], dict[str, Any]] = {}

    def describe(self: Any, element_ty: Any, shape: Any) -> None:
        if type(self) is not block_type:  # It has further attributes.
            init(self, element_ty, shape)
            return
        sizes = tuple([size.value if type(size) is constexpr else size for size in shape])
        known = types.get((element_ty.name, sizes))
        if known is None:
            init(self, element_ty, shape)
            known = types[element_ty.name, sizes] = {**vars(self), "sizes": sizes}
        vars(self).update(known, element_ty=element_ty)

    return describe


def _counted_once(tensor: Any, block_type: Any) -> Replacement:
    """Caches the attributes of tensors, which otherwise count the elements of their shapes."""
    init = MAKE.get()
    own = ("handle", "type", "dtype")
    tensors: dict[tuple[Any, ...], dict[str, Any]] = {}

    def make(self: Any, handle: Any, type_: Any) -> None:
        is_block = type(type_) is block_type
        sizes = getattr(type_, "sizes", None) if is_block or type_.is_block() else ()
        known = None if sizes is None else tensors.get(sizes)
        if known is not None and type(self) is tensor:
            self.__dict__.update(known)
            self.handle, self.type, self.dtype = handle, type_, type_.element_ty if is_block else type_.scalar
            return
        init(self, handle, type_)
        if sizes is not None and type(self) is tensor:
            tensors[sizes] = {name: value for name, value in vars(self).items() if name not in own}

    return make


# Two operands of one shape with one of these types need no conversion. 16-bit floats do: they are divided as fp32.
_INTEGERS = {f"{kind}int{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)}
_UNCHANGED = {"int1", "fp32", "fp64"} | _INTEGERS


def _prepared_once(tensor: Any) -> Replacement:
    """Skips the conversion of two operands to a common type and shape if they have one. The block that a number becomes
    beside another block is cached, since operations never write to their operands."""
    prepare, builder = PREPARE.get(), BUILDER.get()
    blocks: dict[tuple[Any, ...], Any] = {}

    def described(operand: Any) -> tuple[str, Any]:
        """The type and shape of an operand; the shape is () for a scalar, None if unknown."""
        return operand.dtype.name, getattr(operand.type, "sizes", None) if operand.type.is_block() else ()

    def prepare_once(self: Any, lhs: Any, rhs: Any, *flags: bool, **named: bool) -> tuple[Any, Any]:
        left, right = type(lhs) is tensor, type(rhs) is tensor
        if not isinstance(self.builder, builder) or not (left or right):
            return prepare(self, lhs, rhs, *flags, **named)  # type: ignore[no-any-return]
        kind, sizes = described(lhs if left else rhs)
        if sizes is None:
            return prepare(self, lhs, rhs, *flags, **named)  # type: ignore[no-any-return]
        if left and right:
            other_kind, other_sizes = described(rhs)
            # The first flag allows a pointer on the left, to which an integer is added.
            steps = other_kind in _INTEGERS and flags[:1] == (True,) and lhs.dtype.is_ptr()
            if steps or (kind == other_kind and kind in _UNCHANGED):
                return (lhs, rhs) if sizes == other_sizes else self.broadcast_impl_value(lhs, rhs)
            return prepare(self, lhs, rhs, *flags, **named)  # type: ignore[no-any-return]
        given, number = (lhs, rhs) if left else (rhs, lhs)
        key = (left, kind, sizes, type(number), repr(number), flags, *named.items())  # repr: -0.0 == 0.0
        if key not in blocks:
            one, other = prepare(self, lhs, rhs, *flags, **named)
            if (one if left else other) is given and isinstance(number, bool | int | float):
                blocks[key] = other if left else one
            return one, other
        return (lhs, blocks[key]) if left else (blocks[key], rhs)

    return prepare_once


def _broadcast_if_unequal(tensor: Any) -> Replacement:
    """Skips the comparison of two equal shapes, axis by axis, and the types that Triton makes to repeat a scalar."""
    broadcast, builder, handle = BROADCAST.get(), BUILDER.get(), HANDLE.get()

    def repeated(scalar: Any, block: Any, sizes: tuple[int, ...]) -> Any:
        given = scalar.handle
        data = np.full(sizes, given.data, dtype=given.data.dtype)
        return tensor(handle(data, given.dtype.scalar), block.with_element_ty(scalar.dtype))

    def broadcast_if_unequal(self: Any, lhs: Any, rhs: Any) -> Any:
        left, right = lhs.type, rhs.type
        sizes, others = getattr(left, "sizes", None), getattr(right, "sizes", None)  # Only types of blocks have it.
        if sizes is not None and sizes == others:
            return lhs, rhs
        if isinstance(self.builder, builder):
            if sizes is not None and not right.is_block():
                return lhs, repeated(rhs, left, sizes)
            if others is not None and not left.is_block():
                return repeated(lhs, right, others), rhs
        return broadcast(self, lhs, rhs)

    return broadcast_if_unequal


def _sanitized_if_asserted() -> Replacement:
    """Skips the six operations that compute the overflow of integer sums, differences and products for an assertion,
    which has no effect unless `debug` is on."""
    sanitize = SANITIZE.get()

    def sanitize_if_asserted(self: Any, *operation: Any) -> None:
        options = self.builder.options
        if getattr(options, "backend_name", "") != "interpreter" or getattr(options, "debug", True):
            sanitize(self, *operation)

    return sanitize_if_asserted
