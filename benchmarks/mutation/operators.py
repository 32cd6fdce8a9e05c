"""Mutation operators: cosmic-ray's own, grouped, and ours for what kernels get wrong.

Ours rewrite a node's text. They subclass cosmic-ray's Operator, so that its visitor applies them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import parso
from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.operators.provider import OperatorProvider

Position = tuple[tuple[int, int], tuple[int, int]]

NARROWER = {"float32": "float16", "float64": "float32"}
HINTS = ("eviction_policy", "cache_modifier", "volatile")
ATOMICS = ("atomic_add", "atomic_max", "atomic_min")
WAITS = ("debug_barrier", "barrier", "gdc_wait", "wait", "async_wait", "store_wait")


class Rewriting(Operator):  # type: ignore[misc]  # cosmic-ray has no types
    """Other texts that a node may have."""

    examples_of_it: tuple[tuple[str, str], ...]

    def rewrites(self, node: Any) -> list[str]:
        """Each another mutant; none where the operator does not apply."""
        raise NotImplementedError

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        for _ in self.rewrites(node):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        text = self.rewrites(node)[index]
        return parso.python.tree.Name(text, node.start_pos, node.get_first_leaf().prefix)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return tuple(Example(before, after) for before, after in cls.examples_of_it)


def _code(node: Any) -> str:
    return str(node.get_code(include_prefix=False))


def _keyword(node: Any) -> str:
    """The name of a keyword argument, `` of any other node."""
    if node.type == "argument" and len(node.children) == 3 and _code(node.children[1]) == "=":
        return _code(node.children[0])
    return ""


def _called(node: Any) -> str:
    """`tl.load` of a call's node, `` of any other."""
    if node.type in ("atom_expr", "power") and _code(node.children[-1]).startswith("("):
        return "".join(_code(child) for child in node.children[:-1])
    return ""


def _arguments(node: Any) -> list[str]:
    """Of a call's node, as they stand there."""
    inner = node.children[-1].children[1:-1]
    if not inner:
        return []
    parts = inner[0].children if inner[0].type == "arglist" else inner
    return [_code(part) for part in parts if _code(part) != ","]


def _with_arguments(node: Any, arguments: list[str], name: str | None = None) -> str:
    return f"{name or _called(node)}({', '.join(arguments)})"


class DropMask(Rewriting):
    """A load or store of what lies past the end."""

    examples_of_it = (("tl.load(p, mask=m)\n", "tl.load(p, mask=None)\n"),)

    def rewrites(self, node: Any) -> list[str]:
        return ["mask=None"] if _keyword(node) == "mask" and _code(node.children[2]) != "None" else []


class ShiftMask(Rewriting):
    """A mask that ends one element late, or early."""

    examples_of_it = (("m = offs < n\n", "m = offs < n + 1\n"),)

    def rewrites(self, node: Any) -> list[str]:
        if node.type != "comparison" or len(node.children) != 3 or _code(node.children[1]) != "<":
            return []
        left, right = _code(node.children[0]), _code(node.children[2])
        return [f"{left} < {right} + 1", f"{left} < {right} - 1"]


class OtherValue(Rewriting):
    """What stands in for masked elements."""

    examples_of_it = (("tl.load(p, mask=m, other=0.0)\n", "tl.load(p, mask=m, other=1.0)\n"),)

    def rewrites(self, node: Any) -> list[str]:
        return (
            ["other=1.0" if _code(node.children[2]) in ("0", "0.0") else "other=0.0"]
            if _keyword(node) == "other"
            else []
        )


class SwapStrides(Rewriting):
    """One stride for another."""

    examples_of_it = (("p = a + r * a_stride_row\n", "p = a + r * 1\n"), ("s = a.stride(0)\n", "s = a.stride(-1)\n"))

    def rewrites(self, node: Any) -> list[str]:
        called = _called(node)
        if called.endswith(".stride") and len(_arguments(node)) == 1:
            return [f"{called}({'-1' if _arguments(node)[0] != '-1' else '0'})"]
        used = node.type == "name" and node.parent.type in ("term", "arith_expr")
        return ["1"] if used and "stride" in node.value else []


class NarrowAccumulator(Rewriting):
    """Fewer bits for sums."""

    examples_of_it = (
        ("a = tl.zeros((n,), tl.float32)\n", "a = tl.zeros((n,), tl.float16)\n"),
        ("a = x.to(tl.float32)\n", "a = x.to(tl.float16)\n"),
    )

    def rewrites(self, node: Any) -> list[str]:
        text = _code(node) if node.type in ("atom_expr", "power") else ""
        module, _, dtype = text.rpartition(".")
        return [f"{module}.{NARROWER[dtype]}"] if module in ("tl", "gl", "torch") and dtype in NARROWER else []


class PlainStore(Rewriting):
    """An atomic that became a store: the last one wins."""

    examples_of_it = (("tl.atomic_add(p, v, mask=m)\n", "tl.store(p, v, mask=m)\n"),)

    def rewrites(self, node: Any) -> list[str]:
        module, _, name = _called(node).rpartition(".")
        kept = [text for text in _arguments(node) if not text.startswith(("sem=", "scope="))] if name in ATOMICS else []
        return [_with_arguments(node, kept, f"{module}.store")] if kept else []


class DropMaximum(Rewriting):
    """exp of what was not made small before."""

    examples_of_it = (("e = tl.exp(x - m)\n", "e = tl.exp(x)\n"), ("e = tl.exp2(x - m[:, None])\n", "e = tl.exp2(x)\n"))

    def rewrites(self, node: Any) -> list[str]:
        if not _called(node).endswith((".exp", ".exp2")) or len(_arguments(node)) != 1:
            return []
        argument = node.children[-1].children[1]
        if argument.type != "arith_expr" or _code(argument.children[1]) != "-":
            return []
        return [_with_arguments(node, [_code(argument.children[0])])]


class ExchangeArms(Rewriting):
    """The arms of a choice exchanged."""

    examples_of_it = (("y = tl.where(m, a, b)\n", "y = tl.where(m, b, a)\n"),)

    def rewrites(self, node: Any) -> list[str]:
        if not _called(node).endswith(".where") or len(_arguments(node)) != 3:
            return []
        condition, first, second = _arguments(node)
        return [_with_arguments(node, [condition, second, first])]


class DropWait(Rewriting):
    """Nobody waits."""

    examples_of_it = (("tl.debug_barrier()\n", "None\n"),)

    def rewrites(self, node: Any) -> list[str]:
        return ["None"] if _called(node).rpartition(".")[2] in WAITS and node.parent.type == "simple_stmt" else []


class DropHint(Rewriting):
    """What a load tells the cache, or the compiler about alignment."""

    examples_of_it = (
        ('tl.load(p, eviction_policy="evict_last")\n', 'tl.load(p, eviction_policy="")\n'),
        ("p = tl.multiple_of(p, 16)\n", "p = p\n"),
    )

    def rewrites(self, node: Any) -> list[str]:
        if _keyword(node) in HINTS:
            return [f"{_keyword(node)}=False" if _keyword(node) == "volatile" else f'{_keyword(node)}=""']
        hinted = _called(node).rpartition(".")[2] in ("multiple_of", "max_contiguous", "max_constancy")
        return [_arguments(node)[0]] if hinted else []


class OtherLaunch(Rewriting):
    """Twice, or half as many, warps or stages."""

    examples_of_it = (("f[g](x, num_warps=4)\n", "f[g](x, num_warps=8)\n"),)

    def rewrites(self, node: Any) -> list[str]:
        name = _keyword(node)
        if name not in ("num_warps", "num_stages"):
            return []
        value = _code(node.children[2])
        if not value.isdigit():
            return [f"{name}=2 * ({value})"] if name == "num_warps" else [f"{name}=({value}) + 1"]
        return [f"{name}={int(value) * 2}" if name == "num_warps" else f"{name}={int(value) + 1}"]


class Specialise(Rewriting):
    """A binary for each value."""

    examples_of_it = (('@triton.jit(do_not_specialize=["rows"])\n', "@triton.jit(do_not_specialize=[])\n"),)

    def rewrites(self, node: Any) -> list[str]:
        return [f"{_keyword(node)}=[]"] if _keyword(node).startswith("do_not_specialize") else []


class ClearMemory(Rewriting):
    """A fill more."""

    examples_of_it = (
        ("y = x.new_empty(n)\n", "y = x.new_zeros(n)\n"),
        ("y = torch.empty(n)\n", "y = torch.zeros(n)\n"),
    )

    def rewrites(self, node: Any) -> list[str]:
        owner, _, name = _called(node).rpartition(".")
        others = {"new_empty": "new_zeros", "empty": "zeros", "empty_like": "zeros_like"}
        return [_with_arguments(node, _arguments(node), f"{owner}.{others[name]}")] if owner and name in others else []


class LeaveMemory(Rewriting):
    """A fill less."""

    examples_of_it = (("y = x.new_zeros(n)\n", "y = x.new_empty(n)\n"),)

    def rewrites(self, node: Any) -> list[str]:
        owner, _, name = _called(node).rpartition(".")
        others = {"new_zeros": "new_empty", "zeros_like": "empty_like"} | (
            {"zeros": "empty"} if owner == "torch" else {}
        )
        return [_with_arguments(node, _arguments(node), f"{owner}.{others[name]}")] if owner and name in others else []


class SaveMore(Rewriting):
    """A tensor more is kept for the backward pass."""

    examples_of_it = (("ctx.save_for_backward(x)\n", "ctx.more = ((x) + 0); ctx.save_for_backward(x)\n"),)

    def rewrites(self, node: Any) -> list[str]:
        if not _called(node).endswith(".save_for_backward") or not _arguments(node):
            return []
        return [f"{_called(node).rpartition('.')[0]}.more = (({_arguments(node)[0].lstrip('*')}) + 0); {_code(node)}"]


class Detach(Rewriting):
    """An argument of an operator whose gradient is lost."""

    examples_of_it = (("y = Op.apply(x, w)\n", "y = Op.apply(x.detach(), w)\n"),)

    def rewrites(self, node: Any) -> list[str]:
        if node.type != "name" or node.parent.type != "arglist" or len(node.value) > 2 or not node.value.islower():
            return []
        called = _called(node.parent.parent.parent)
        return [f"{node.value}.detach()"] if called.endswith(".apply") or called.startswith("torch.ops.") else []


class DropContiguous(Rewriting):
    """Strides taken for granted."""

    examples_of_it = (("x = x.contiguous()\n", "x = x\n"),)

    def rewrites(self, node: Any) -> list[str]:
        return [_called(node).removesuffix(".contiguous")] if _called(node).endswith(".contiguous") else []


OURS: tuple[type[Rewriting], ...] = (
    DropMask, ShiftMask, OtherValue, SwapStrides, NarrowAccumulator, PlainStore, DropMaximum, ExchangeArms, DropWait,
    DropHint, OtherLaunch, Specialise, ClearMemory, LeaveMemory, SaveMore, Detach, DropContiguous,
)  # fmt: skip
#: cosmic-ray's, by the group that tables name; what only Python programs have (decorators, exceptions) is left out.
_GROUPS: dict[str, Callable[[str], bool]] = {
    "comparison": lambda name: name.startswith("ReplaceComparisonOperator"),
    "arithmetic": lambda name: name.startswith("ReplaceBinaryOperator"),
    "sign": lambda name: name.startswith(("ReplaceUnaryOperator", "AddNot")),
    "constant": lambda name: name == "NumberReplacer",
    "boolean": lambda name: name in (
        "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd",
    ),
}  # fmt: skip


def operators() -> dict[str, tuple[str, Operator]]:
    """All operators by name: the group that tables name, and the operator."""
    provider = OperatorProvider()
    found: dict[str, tuple[str, Operator]] = {each.__name__: (each.__name__, each()) for each in OURS}
    for name in provider:
        group = next((group for group, fits in _GROUPS.items() if fits(name)), "")
        if group:
            found[name] = group, provider[name]()
    return found
