"""Triton's interpreter in a fifth of its time: it does once what it otherwise repeats at every operation, and does not
do what nobody looks at.

Nothing of what it computes changes. A Triton without the names that are replaced here is as slow as it was.
"""

from __future__ import annotations

from typing import Any


def quicken_interpreter() -> None:
    """For this process, once. Before any kernel is interpreted."""
    from triton import language
    from triton.runtime import interpreter

    if vars(interpreter).setdefault("_is_quick", False):  # as a nursery's processes are from the start
        return
    interpreter._is_quick = True
    _patch_the_language_once_a_launch(language, interpreter)
    _list_the_language_once(interpreter)
    _look_up_numpy_types_once(interpreter)
    _shift_bfloat16(language, interpreter)
    _describe_blocks_once(language.core)
    _compare_shapes_as_lists(language.core)
    _unwrap_what_is_wrapped(language.core)
    _prepare_operands_once(language, interpreter)
    _leave_out_what_is_not_asserted(language)


def _patch_the_language_once_a_launch(language: Any, interpreter: Any) -> None:
    """The interpreter replaces every function of triton.language by an interpreted one, and it does so again at each
    call of a device function (`tl.max` is one), of which the first in a launch changes something. Triton 3.9 puts back
    only what the launch itself replaced: a kernel that this process compiles afterwards would meet the rest."""
    patch = getattr(interpreter, "_patch_lang", None)
    launch = getattr(interpreter, "GridExecutor", None)
    if patch is None or launch is None:
        return
    run = launch.__call__
    patched: set[tuple[bool, bool]] = set()
    seen: dict[Any, tuple[bool, bool]] = {}  # function -> whether it sees the language, and its core
    scopes: list[Any] = []  # the launch's own, which is put back; Triton 3.6 has none

    def patch_once(fn: Any) -> Any:
        if fn not in seen:
            names = list(fn.__globals__.values())
            seen[fn] = (any(name is language for name in names), any(name is language.core for name in names))
        if seen[fn] in patched:
            return None
        patched.add(seen[fn])
        scope = patch(fn)
        if hasattr(scope, "_changes"):
            scopes.append(scope)
            if scope is not scopes[0]:
                scopes[0]._changes.extend(scope._changes)
        return scope

    def run_afresh(self: Any, *args: Any, **kwargs: Any) -> Any:
        patched.clear()
        scopes.clear()
        return run(self, *args, **kwargs)

    interpreter._patch_lang = patch_once
    launch.__call__ = run_afresh


def _list_the_language_once(interpreter: Any) -> None:
    """What there is to replace is looked for at every launch, in modules and classes that are then as they were."""
    replace = getattr(interpreter, "_patch_attr", None)
    if replace is None or not hasattr(interpreter, "_patch_builtin"):
        return
    found: dict[Any, list[tuple[str, Any]]] = {}

    def patch_listed(package: Any, builder: Any, scope: Any) -> None:
        if package not in found:
            members = interpreter.inspect.getmembers(package)
            found[package] = [each for each in members if interpreter.tl.core.is_builtin(each[1])]
        for name, member in found[package]:
            replace(package, name, member, builder, scope)

    interpreter._patch_builtin = patch_listed


def _look_up_numpy_types_once(interpreter: Any) -> None:
    """Each look-up builds the table of all types."""
    look_up = getattr(interpreter, "_get_np_dtype", None)
    if look_up is None:
        return
    known: dict[str, Any] = {}

    def looked_up(triton_type: Any) -> Any:
        name = triton_type.scalar.name  # of a block's elements; a pointer's has the name of what it points to
        if name not in known:
            known[name] = look_up(triton_type)
        return known[name]

    interpreter._get_np_dtype = looked_up


def _shift_bfloat16(language: Any, interpreter: Any) -> None:
    """Exponent and mantissa are taken apart and put together again, though those of bfloat16 are the first 16 bits of
    float32's. Subnormal numbers, of which that is not what the interpreter makes, are left to it."""
    convert = getattr(interpreter, "_convert_float", None)
    if convert is None:
        return
    short, long = language.bfloat16, language.float32

    def convert_or_shift(given: Any, kind: Any, wanted: Any, rounding: Any) -> Any:
        if kind == short and wanted == long:
            bits, exponent, mantissa = given.view("uint16"), 0x7F80, 0x7F
        elif kind == long and wanted == short and rounding is None:
            bits, exponent, mantissa = given.view("uint32"), 0x7F800000, 0x7FFFFF
        else:
            return convert(given, kind, wanted, rounding)
        if (((bits & exponent) == 0) & ((bits & mantissa) != 0)).any():
            return convert(given, kind, wanted, rounding)
        return bits.astype("uint32") << 16 if kind == short else (bits >> 16).astype("uint16")

    interpreter._convert_float = convert_or_shift


def _describe_blocks_once(core: Any) -> None:
    """Every result has a type, made anew, whose shape is checked and written out; its tensor counts it again."""
    block_type, tensor, constexpr = (getattr(core, name, None) for name in ("block_type", "tensor", "constexpr"))
    if block_type is None or tensor is None or constexpr is None:
        return
    init_type, init_tensor = block_type.__init__, tensor.__init__
    types: dict[tuple[Any, ...], dict[str, Any]] = {}
    tensors: dict[tuple[Any, ...], dict[str, Any]] = {}

    def describe(self: Any, element_ty: Any, shape: Any) -> None:
        if type(self) is not block_type:  # a type with more to it than its shape
            init_type(self, element_ty, shape)
            return
        sizes = tuple([size.value if type(size) is constexpr else size for size in shape])
        known = types.get((element_ty.name, sizes))
        if known is None:
            init_type(self, element_ty, shape)
            known = types[element_ty.name, sizes] = {**vars(self), "sizes": sizes}
        vars(self).update(known, element_ty=element_ty)

    def make(self: Any, handle: Any, type_: Any) -> None:
        sizes = getattr(type_, "sizes", None) if type_.is_block() else ()
        known = None if sizes is None else tensors.get(sizes)
        if known is not None and type(self) is tensor:
            vars(self).update(known, handle=handle, type=type_, dtype=type_.scalar)
            return
        init_tensor(self, handle, type_)
        if sizes is not None and type(self) is tensor:
            own = ("handle", "type", "dtype")
            tensors[sizes] = {name: value for name, value in vars(self).items() if name not in own}

    block_type.__init__ = describe
    tensor.__init__ = make


def _compare_shapes_as_lists(core: Any) -> None:
    """To compare a tuple of a kernel's with anything, that is made a tuple too, with a type for each of its members."""
    kind, constexpr = getattr(core, "tuple", None), getattr(core, "constexpr", None)
    if kind is None or constexpr is None or "__eq__" not in vars(kind):
        return
    equal = kind.__eq__

    def equal_to_numbers(self: Any, other: Any) -> Any:
        members = other.values if type(other) is kind else other
        if type(members) is list and all(type(member) is int for member in members):
            return constexpr(self.values == members)
        return equal(self, other)

    kind.__eq__ = equal_to_numbers


def _unwrap_what_is_wrapped(core: Any) -> None:
    """Every argument of every operation is looked at, in four steps, for a constant that it may hold."""
    unwrap, tensor = getattr(core, "_unwrap_if_constexpr", None), getattr(core, "tensor", None)
    if unwrap is None or tensor is None:
        return
    plain = {tensor, bool, int, float, type(None)}

    def unwrap_if_wrapped(given: Any) -> Any:
        return given if type(given) in plain else unwrap(given)

    core._unwrap_if_constexpr = unwrap_if_wrapped


# Types to which nothing is done where both operands have them and are of one shape. 16-bit floats are divided as fp32.
_UNCHANGED = {"int1", "fp32", "fp64"} | {f"{kind}int{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)}


def _prepare_operands_once(language: Any, interpreter: Any) -> None:
    """Types and shapes of two operands are compared and made one at every operation, and a number becomes a block that
    is full of it. Operands of one type and shape are fit as they are; of a number beside a block the block is kept:
    operations write to memory of their own."""
    semantic = getattr(getattr(language, "semantic", None), "TritonSemantic", None)
    prepare = getattr(semantic, "binary_op_type_checking_impl", None)
    builder = getattr(interpreter, "InterpreterBuilder", None)
    tensor = getattr(language.core, "tensor", None)
    if semantic is None or prepare is None or builder is None or tensor is None:
        return
    blocks: dict[tuple[Any, ...], Any] = {}

    def described(operand: Any) -> tuple[str, Any]:
        """Its type, and its shape; () of a scalar, None where that is not known."""
        return operand.dtype.name, getattr(operand.type, "sizes", None) if operand.type.is_block() else ()

    def prepare_once(self: Any, lhs: Any, rhs: Any, *flags: bool, **named: bool) -> tuple[Any, Any]:
        left, right = type(lhs) is tensor, type(rhs) is tensor
        if type(self.builder) is not builder or not (left or right):
            return prepare(self, lhs, rhs, *flags, **named)  # type: ignore[no-any-return]
        kind, sizes = described(lhs if left else rhs)
        if sizes is None:
            return prepare(self, lhs, rhs, *flags, **named)  # type: ignore[no-any-return]
        if left and right:
            if kind in _UNCHANGED and described(rhs) == (kind, sizes):
                return lhs, rhs
            return prepare(self, lhs, rhs, *flags, **named)  # type: ignore[no-any-return]
        given, number = (lhs, rhs) if left else (rhs, lhs)
        key = (left, kind, sizes, type(number), repr(number), flags, *named.items())  # repr: -0.0 == 0.0
        if key not in blocks:
            one, other = prepare(self, lhs, rhs, *flags, **named)
            if (one if left else other) is given and type(number) in (bool, int, float):
                blocks[key] = other if left else one
            return one, other
        return (lhs, blocks[key]) if left else (blocks[key], rhs)

    semantic.binary_op_type_checking_impl = prepare_once


def _leave_out_what_is_not_asserted(language: Any) -> None:
    """Beside every sum, difference and product of integers the interpreter works out whether it overflows, in six
    operations more; then it asserts that, which does nothing unless `debug` is on."""
    semantic = getattr(getattr(language, "semantic", None), "TritonSemantic", None)
    sanitize = getattr(semantic, "binary_op_sanitize_overflow_impl", None)
    if semantic is None or sanitize is None:
        return

    def sanitize_if_asserted(self: Any, *operation: Any) -> None:
        options = self.builder.options
        if getattr(options, "backend_name", "") != "interpreter" or getattr(options, "debug", True):
            sanitize(self, *operation)

    semantic.binary_op_sanitize_overflow_impl = sanitize_if_asserted
