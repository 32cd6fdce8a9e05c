"""Rewrites the source of kernels so that `a and b`, `a or b` and `not a` work on blocks as on a GPU.

Python would test the truth of a whole block, which is always true in Triton's interpreter. In addition, loop indices
get the method of Triton's integers, `i.to(tl.int64)`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

from perfguard._compat.triton_interpreter import REWRITER

#: The names that rewritten kernels call.
JOIN, INVERT, LOOP_INDICES = "interpreter_join", "interpreter_invert", "interpreter_turns"


def rewriter() -> Any:
    """The replacement of Triton's rewriter of sources."""
    base = type(REWRITER.get())

    def visit_logic(self: Any, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        later = [ast.Lambda(args=nothing, body=value) for value in node.values]
        method = ast.Constant("logical_and" if isinstance(node.op, ast.And) else "logical_or")
        call = ast.Call(func=ast.Name(id=JOIN, ctx=ast.Load()), args=[method, *later], keywords=[])
        return ast.copy_location(call, node)

    def visit_sign(self: Any, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Not):
            return node
        call = ast.Call(func=ast.Name(id=INVERT, ctx=ast.Load()), args=[node.operand], keywords=[])
        return ast.copy_location(call, node)

    def visit_loop(self: Any, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        node.iter = ast.copy_location(ast.Call(ast.Name(id=LOOP_INDICES, ctx=ast.Load()), [node.iter], []), node.iter)
        return node

    def visit_value(self: Any, node: ast.Assign) -> ast.AST:
        node.value = self.visit(node.value)  # Triton 3.6 visits only the targets.
        rewritten: ast.AST = base.visit_Assign(self, node)
        return rewritten

    visits = {"BoolOp": visit_logic, "UnaryOp": visit_sign, "For": visit_loop, "Assign": visit_value}
    return type("Rewriter", (base,), {f"visit_{name}": visit for name, visit in visits.items()})()


class LoopIndex(int):
    """The index of a loop."""

    def to(self, dtype: Any, *_: Any, **__: Any) -> Any:
        """The index as a scalar of this type."""
        from triton import language

        return language.full([], int(self), dtype)


def loop_indices(given: Iterable[Any]) -> Iterable[Any]:
    """The iterable of a loop, with indices that have the methods of Triton's integers."""
    return map(LoopIndex, given) if type(given) is range else given


def _is_block(value: Any) -> bool:
    handle = getattr(value, "handle", None)
    return handle is not None and getattr(handle, "data", None) is not None and handle.data.size > 1


def join(method: str, *values: Callable[[], Any]) -> Any:
    """`a and b` or `a or b`."""
    result = values[0]()
    for value in values[1:]:
        if _is_block(result):
            result = getattr(result, method)(value())
        elif bool(result) == (method == "logical_and"):
            other = value()
            # A scalar takes the shape of a block.
            result = getattr(other, method)(result) if _is_block(other) and hasattr(result, "handle") else other
    return result


def invert(value: Any) -> Any:
    """`not a`."""
    return value == 0 if _is_block(value) else not value
