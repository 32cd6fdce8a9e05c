"""Functions of libdevice, computed with NumPy if it has them; others raise an error that names them.

In Triton's interpreter they have no body and return None.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from perfguard._compat.triton_interpreter import HANDLE
from perfguard.interpreter.builder import as_type, floats
from perfguard.interpreter.formats import Array
from perfguard.interpreter.running import NotInterpreted

# These functions have the same name in NumPy.
_OF_NUMPY = (
    "tanh", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh", "sqrt",
    "cbrt", "floor", "ceil", "trunc", "rint", "abs", "fmod", "fmin", "fmax", "hypot", "isnan", "isinf", "copysign",
)  # fmt: skip
_KNOWN: dict[str, Callable[..., Array]] = {
    "rsqrt": lambda x: np.asarray(1 / np.sqrt(x)),
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "pow": np.power,
    "atan2": np.arctan2,
    "acos": np.arccos,
    "asin": np.arcsin,
    "atan": np.arctan,
    "acosh": np.arccosh,
    "asinh": np.arcsinh,
    "atanh": np.arctanh,
    "round": lambda x: np.trunc(x + np.copysign(0.5, x)),
    "nearbyint": np.rint,
    "div_rn": np.divide,
    **{name: getattr(np, name) for name in _OF_NUMPY},
}


_STOOD_FOR: dict[int, Callable[..., Any]] = {}  # The id of a stand-in -> the function of libdevice.
Members = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]  # A namespace, its functions, their stand-ins.


def replace_libraries(scope: dict[str, Any]) -> Callable[[], None]:
    """Replace functions of libdevice for kernels with these globals; returns a function that restores them.

    The globals are looked through at each launch: a test may have given one of their names to another function.
    """
    members = [*_libraries(len(sys.modules)), _members(scope)]
    for namespace, _, stand_ins in members:
        namespace.update(stand_ins)

    def undo() -> None:
        for namespace, functions, _ in members:
            namespace.update(functions)

    return undo


@functools.cache
def _libraries(loaded: int) -> list[Members]:
    """Those of libdevice's modules. `loaded`: the number of loaded modules, which invalidates the cache if it
    changes."""
    return [_members(vars(module)) for name, module in list(sys.modules.items()) if _is_library(name) and module]


def _members(namespace: dict[str, Any]) -> Members:
    functions = {
        name: original
        for name, value in namespace.items()
        if type(value) is FunctionType  # A launch that loads modules looks again, and finds its own stand-ins.
        and _is_library((original := _STOOD_FOR.get(id(value), value)).__module__ or "")
    }
    stand_ins = {name: _stand_in(value) for name, value in functions.items()}
    return namespace, functions, stand_ins


def _is_library(module: str) -> bool:
    return module.startswith("triton.language.extra") and module.endswith("libdevice")


@functools.cache
def _stand_in(original: Callable[..., Any]) -> Callable[..., Any]:
    """The function that a launch calls in place of one of libdevice. There is one for each, which is never freed."""
    name = getattr(original, "__name__", str(original))

    def computed(*given: Any, **_: Any) -> Any:
        from triton import language

        function = _KNOWN.get(name.removeprefix("fast_").removesuffix("f"), _KNOWN.get(name))
        tensors = [each for each in given if isinstance(each, language.tensor)]
        if function is None or not tensors:
            raise NotInterpreted(f"libdevice.{name}")
        numbers = [
            floats(each.handle) if isinstance(each, language.tensor) else np.asarray(each, np.float32) for each in given
        ]
        scalar = language.int1 if name.startswith("is") else tensors[0].dtype
        data = as_type(np.asarray(function(*numbers)), scalar)
        widest = max(tensors, key=lambda each: each.handle.data.size)
        kind = widest.type.with_element_ty(scalar) if widest.type.is_block() else scalar
        return language.tensor(HANDLE.get()(data, scalar), kind)

    _STOOD_FOR[id(computed)] = original
    return computed
