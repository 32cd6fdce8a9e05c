"""Triton's interpreter: the builder that computes with NumPy, its launches, reductions, and what patches them."""

from __future__ import annotations

from typing import Any

from perfguard._compat.private import Private, privates

_RIGHT = "mending Triton's interpreter"
_FAST = "quickening Triton's interpreter"
_MODULE = "triton.runtime.interpreter"
_SEMANTIC = "triton.language.semantic"
_CORE = "triton.language.core"

INTERPRETER = Private(_MODULE, "", _RIGHT)
BUILDER = Private(_MODULE, "InterpreterBuilder", _RIGHT)
SHARED = Private(_MODULE, "interpreter_builder", _RIGHT)
HANDLE = Private(_MODULE, "TensorHandle", _RIGHT)
MEMORY = Private(_MODULE, "_interpreter", _RIGHT)
ROUNDING = Private(_MODULE, "_ir.ROUNDING_MODE", _RIGHT)
CONVERT = Private(_MODULE, "_convert_float", _RIGHT)
ARGUMENT = Private(_MODULE, "_implicit_cvt", _RIGHT)
REDUCE = Private(_MODULE, "ReduceOps.apply_impl", _RIGHT)
SCAN = Private(_MODULE, "ScanOps.apply_impl", _RIGHT)
COMBINES = Private("triton.language.standard", "", _RIGHT)
REWRITER = Private(_MODULE, "FunctionRewriter.ast_transformer", _RIGHT)
REWRITTEN = Private(_MODULE, "InterpretedFunction.rewritten_fn", _RIGHT)
LAUNCH = Private(_MODULE, "GridExecutor.__call__", _RIGHT)
TUNE = Private("triton.runtime.autotuner", "Autotuner.run", _RIGHT)
COMPILED_LAUNCH = Private("triton.runtime.jit", "JITFunction.run", _RIGHT)
PATCH = Private(_MODULE, "_patch_lang", _RIGHT)
PATCH_BUILTINS = Private(_MODULE, "_patch_builtin", _FAST)
PATCH_ONE = Private(_MODULE, "_patch_attr", _FAST)
NUMPY_TYPE = Private(_MODULE, "_get_np_dtype", _FAST)
DESCRIBE = Private(_CORE, "block_type.__init__", _FAST)
MAKE = Private(_CORE, "tensor.__init__", _FAST)
EQUAL = Private(_CORE, "tuple.__eq__", _FAST)
UNWRAP = Private(_CORE, "_unwrap_if_constexpr", _FAST)
PREPARE = Private(_SEMANTIC, "TritonSemantic.binary_op_type_checking_impl", _FAST)
SANITIZE = Private(_SEMANTIC, "TritonSemantic.binary_op_sanitize_overflow_impl", _FAST)

NAMES = (
    *(each for each in [*globals().values()] if isinstance(each, Private)),
    *privates(
        _MODULE,
        _RIGHT,
        "InterpreterBuilder.binary_op InterpreterBuilder.ternary_op InterpreterBuilder.unary_op "
        "InterpreterBuilder.cast_impl InterpreterBuilder.create_dot InterpreterBuilder.create_masked_load "
        "InterpreterBuilder.create_masked_store InterpreterBuilder.create_atomic_rmw InterpreterBuilder.set_grid_idx "
        "InterpreterBuilder.create_atomic_cas InterpreterBuilder.create_fma _LangPatchScope.set_attr "
        "_interpreter.load _interpreter.store ReduceOps.unravel ASTTransformer InterpretedFunction.rewrite",
    ),
)


def put_back_with(launch: Any, scope: Any) -> None:
    """Let the scope of a launch put back what another one has replaced; Triton forgets what device functions did."""
    if scope is not launch and hasattr(launch, "_changes"):
        launch._changes.extend(scope._changes)
