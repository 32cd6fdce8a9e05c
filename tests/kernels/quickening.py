"""Triton's interpreter in a fifth of its time: it does once what it otherwise repeats at every operation, and does not
do what nobody looks at.

Nothing of what it computes changes. A Triton without the names that are replaced here is as slow as it was.
"""

from __future__ import annotations

from typing import Any


def quicken_interpreter() -> None:
    """For this process. Before any kernel is interpreted."""
    from triton import language
    from triton.runtime import interpreter

    _patch_the_language_once_a_launch(language, interpreter)
    _look_up_numpy_types_once(interpreter)
    _describe_blocks_once(language.core)
    _leave_out_what_is_not_asserted(language)


def _patch_the_language_once_a_launch(language: Any, interpreter: Any) -> None:
    """The interpreter replaces every function of triton.language by an interpreted one, and it does so again at each
    call of a device function (`tl.max` is one), of which the first in a launch changes something."""
    patch = getattr(interpreter, "_patch_lang", None)
    launch = getattr(interpreter, "GridExecutor", None)
    if patch is None or launch is None:
        return
    run = launch.__call__
    patched: set[tuple[bool, bool]] = set()

    def patch_once(fn: Any) -> Any:
        names = list(fn.__globals__.values())
        visible = (any(name is language for name in names), any(name is language.core for name in names))
        if visible in patched:
            return None
        patched.add(visible)
        return patch(fn)

    def run_afresh(self: Any, *args: Any, **kwargs: Any) -> Any:
        patched.clear()
        return run(self, *args, **kwargs)

    interpreter._patch_lang = patch_once
    launch.__call__ = run_afresh


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
