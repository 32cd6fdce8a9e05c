"""Triton's interpreter: the builder that computes with NumPy, its launches and reductions, and functions to patch."""

from __future__ import annotations

from typing import Any

from perfguard._compat.private import Private, privates

_CORRECTNESS = "mending Triton's interpreter"
_SPEED = "quickening Triton's interpreter"
_MODULE = "triton.runtime.interpreter"
_SEMANTIC = "triton.language.semantic"
_CORE = "triton.language.core"

INTERPRETER = Private(_MODULE, "", _CORRECTNESS)
BUILDER = Private(_MODULE, "InterpreterBuilder", _CORRECTNESS)
SHARED = Private(_MODULE, "interpreter_builder", _CORRECTNESS)
HANDLE = Private(_MODULE, "TensorHandle", _CORRECTNESS)
MEMORY = Private(_MODULE, "_interpreter", _CORRECTNESS)
ROUNDING = Private(_MODULE, "_ir.ROUNDING_MODE", _CORRECTNESS)
CONVERT = Private(_MODULE, "_convert_float", _CORRECTNESS)
ARGUMENT = Private(_MODULE, "_implicit_cvt", _CORRECTNESS)
REDUCE = Private(_MODULE, "ReduceOps.apply_impl", _CORRECTNESS)
SCAN = Private(_MODULE, "ScanOps.apply_impl", _CORRECTNESS)
COMBINES = Private("triton.language.standard", "", _CORRECTNESS)
REWRITER = Private(_MODULE, "FunctionRewriter.ast_transformer", _CORRECTNESS)
REWRITTEN = Private(_MODULE, "InterpretedFunction.rewritten_fn", _CORRECTNESS)
LAUNCH = Private(_MODULE, "GridExecutor.__call__", _CORRECTNESS)
TUNE = Private("triton.runtime.autotuner", "Autotuner.run", _CORRECTNESS)
COMPILED_LAUNCH = Private("triton.runtime.jit", "JITFunction.run", _CORRECTNESS)
CREATE_DRIVER = Private("triton.runtime.driver", "_create_driver", _CORRECTNESS)
WARM = Private("triton.runtime.jit", "KernelInterface.warmup", _CORRECTNESS)
REPORT = Private("triton.testing", "Mark.run", _CORRECTNESS)
PATCH = Private(_MODULE, "_patch_lang", _CORRECTNESS)
PATCH_ONE = Private(_MODULE, "_patch_attr", _SPEED)
LANGUAGE = Private(_MODULE, "interpreter_semantic", _SPEED)
NUMPY_TYPE = Private(_MODULE, "_get_np_dtype", _SPEED)
DESCRIBE = Private(_CORE, "block_type.__init__", _SPEED)
MAKE = Private(_CORE, "tensor.__init__", _SPEED)
PREPARE = Private(_SEMANTIC, "TritonSemantic.binary_op_type_checking_impl", _SPEED)
BROADCAST = Private(_SEMANTIC, "TritonSemantic.broadcast_impl_value", _SPEED)
SANITIZE = Private(_SEMANTIC, "TritonSemantic.binary_op_sanitize_overflow_impl", _SPEED)

NAMES = (
    *(each for each in [*globals().values()] if isinstance(each, Private)),
    *privates(
        _MODULE,
        _CORRECTNESS,
        "InterpreterBuilder.binary_op InterpreterBuilder.ternary_op InterpreterBuilder.unary_op "
        "InterpreterBuilder.cast_impl InterpreterBuilder.create_dot InterpreterBuilder.create_masked_load "
        "InterpreterBuilder.create_masked_store InterpreterBuilder.create_atomic_rmw InterpreterBuilder.set_grid_idx "
        "InterpreterBuilder.create_atomic_cas InterpreterBuilder.create_fma _LangPatchScope.set_attr "
        "_interpreter.load _interpreter.store ReduceOps.unravel ASTTransformer InterpretedFunction.rewrite",
    ),
)


def changed_by(scope: Any) -> list[tuple[Any, str]]:
    """(owner, name) of each replacement that a launch's scope will restore."""
    return [(owner, name) for owner, name, _ in scope._changes]
