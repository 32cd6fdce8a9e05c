"""Mutation operators: cosmic-ray's own, grouped, and ours for what kernels get wrong.

Ours rewrite a node's text. They subclass cosmic-ray's Operator, so that its visitor applies them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import parso
from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.operators.provider import OperatorProvider

Position = tuple[tuple[int, int], tuple[int, int]]
Rewrites = Callable[[Any], list[str]]

NARROWER = {"float32": "float16", "float64": "float32"}
HINTS = ("eviction_policy", "cache_modifier", "volatile")
ATOMICS = ("atomic_add", "atomic_max", "atomic_min")
WAITS = ("debug_barrier", "barrier", "gdc_wait", "wait", "async_wait", "store_wait")


@dataclass(frozen=True)
class Rewriting(Operator):  # type: ignore[misc]  # cosmic-ray has no types
    """Other texts that a node may have.

    Attributes:
        name: of the operator, in tables.
        pairs: code before and after, as its first mutant.
        rewrites: of a node the text of each mutant; none where the operator does not apply.
    """

    name: str
    pairs: tuple[tuple[str, str], ...]
    rewrites: Rewrites

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        for _ in self.rewrites(node):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        text = self.rewrites(node)[index]
        return parso.python.tree.Name(text, node.start_pos, node.get_first_leaf().prefix)

    def examples(self) -> tuple[Example, ...]:  # type: ignore[override]
        return tuple(Example(before, after) for before, after in self.pairs)


OURS: list[Rewriting] = []


def rewriting(*pairs: tuple[str, str]) -> Callable[[Rewrites], Rewrites]:
    """An operator of ours, by the name of the function that rewrites: `drop_mask` is DropMask."""

    def register(rewrites: Rewrites) -> Rewrites:
        name = "".join(part.capitalize() for part in rewrites.__name__.split("_"))
        OURS.append(Rewriting(name, pairs, rewrites))
        return rewrites

    return register


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


@rewriting(("tl.load(p, mask=m)\n", "tl.load(p, mask=None)\n"))
def drop_mask(node: Any) -> list[str]:
    """A load or store of what lies past the end."""
    return ["mask=None"] if _keyword(node) == "mask" and _code(node.children[2]) != "None" else []


@rewriting(("m = offs < n\n", "m = offs < n + 1\n"))
def shift_mask(node: Any) -> list[str]:
    """A mask that ends one element late, or early."""
    if node.type != "comparison" or len(node.children) != 3 or _code(node.children[1]) != "<":
        return []
    left, right = _code(node.children[0]), _code(node.children[2])
    return [f"{left} < {right} + 1", f"{left} < {right} - 1"]


@rewriting(("tl.load(p, mask=m, other=0.0)\n", "tl.load(p, mask=m, other=1.0)\n"))
def other_value(node: Any) -> list[str]:
    """What stands in for masked elements."""
    return (
        ["other=1.0" if _code(node.children[2]) in ("0", "0.0") else "other=0.0"] if _keyword(node) == "other" else []
    )


@rewriting(("p = a + r * a_stride_row\n", "p = a + r * 1\n"), ("s = a.stride(0)\n", "s = a.stride(-1)\n"))
def swap_strides(node: Any) -> list[str]:
    """One stride for another."""
    called = _called(node)
    if called.endswith(".stride") and len(_arguments(node)) == 1:
        return [f"{called}({'-1' if _arguments(node)[0] != '-1' else '0'})"]
    used = node.type == "name" and node.parent.type in ("term", "arith_expr")
    return ["1"] if used and "stride" in node.value else []


@rewriting(
    ("a = tl.zeros((n,), tl.float32)\n", "a = tl.zeros((n,), tl.float16)\n"),
    ("a = x.to(tl.float32)\n", "a = x.to(tl.float16)\n"),
)
def narrow_accumulator(node: Any) -> list[str]:
    """Fewer bits for sums."""
    text = _code(node) if node.type in ("atom_expr", "power") else ""
    module, _, dtype = text.rpartition(".")
    return [f"{module}.{NARROWER[dtype]}"] if module in ("tl", "gl", "torch") and dtype in NARROWER else []


@rewriting(("tl.atomic_add(p, v, mask=m)\n", "tl.store(p, v, mask=m)\n"))
def plain_store(node: Any) -> list[str]:
    """An atomic that became a store: the last one wins."""
    module, _, name = _called(node).rpartition(".")
    kept = [text for text in _arguments(node) if not text.startswith(("sem=", "scope="))] if name in ATOMICS else []
    return [_with_arguments(node, kept, f"{module}.store")] if kept else []


@rewriting(("e = tl.exp(x - m)\n", "e = tl.exp(x)\n"), ("e = tl.exp2(x - m[:, None])\n", "e = tl.exp2(x)\n"))
def drop_maximum(node: Any) -> list[str]:
    """exp of what was not made small before."""
    if not _called(node).endswith((".exp", ".exp2")) or len(_arguments(node)) != 1:
        return []
    argument = node.children[-1].children[1]
    if argument.type != "arith_expr" or _code(argument.children[1]) != "-":
        return []
    return [_with_arguments(node, [_code(argument.children[0])])]


@rewriting(("y = tl.where(m, a, b)\n", "y = tl.where(m, b, a)\n"))
def exchange_arms(node: Any) -> list[str]:
    """The arms of a choice exchanged."""
    if not _called(node).endswith(".where") or len(_arguments(node)) != 3:
        return []
    condition, first, second = _arguments(node)
    return [_with_arguments(node, [condition, second, first])]


@rewriting(("tl.debug_barrier()\n", "None\n"))
def drop_wait(node: Any) -> list[str]:
    """Nobody waits."""
    return ["None"] if _called(node).rpartition(".")[2] in WAITS and node.parent.type == "simple_stmt" else []


@rewriting(
    ('tl.load(p, eviction_policy="evict_last")\n', 'tl.load(p, eviction_policy="")\n'),
    ("p = tl.multiple_of(p, 16)\n", "p = p\n"),
)
def drop_hint(node: Any) -> list[str]:
    """What a load tells the cache, or the compiler about alignment."""
    if _keyword(node) in HINTS:
        return [f"{_keyword(node)}=False" if _keyword(node) == "volatile" else f'{_keyword(node)}=""']
    hinted = _called(node).rpartition(".")[2] in ("multiple_of", "max_contiguous", "max_constancy")
    return [_arguments(node)[0]] if hinted else []


@rewriting(("f[g](x, num_warps=4)\n", "f[g](x, num_warps=8)\n"))
def other_launch(node: Any) -> list[str]:
    """Twice, or half as many, warps or stages."""
    name = _keyword(node)
    if name not in ("num_warps", "num_stages"):
        return []
    value = _code(node.children[2])
    if not value.isdigit():
        return [f"{name}=2 * ({value})"] if name == "num_warps" else [f"{name}=({value}) + 1"]
    return [f"{name}={int(value) * 2}" if name == "num_warps" else f"{name}={int(value) + 1}"]


@rewriting(('@triton.jit(do_not_specialize=["rows"])\n', "@triton.jit(do_not_specialize=[])\n"))
def specialise(node: Any) -> list[str]:
    """A binary for each value."""
    return [f"{_keyword(node)}=[]"] if _keyword(node).startswith("do_not_specialize") else []


@rewriting(("y = x.new_empty(n)\n", "y = x.new_zeros(n)\n"), ("y = torch.empty(n)\n", "y = torch.zeros(n)\n"))
def clear_memory(node: Any) -> list[str]:
    """A fill more."""
    owner, _, name = _called(node).rpartition(".")
    others = {"new_empty": "new_zeros", "empty": "zeros", "empty_like": "zeros_like"}
    return [_with_arguments(node, _arguments(node), f"{owner}.{others[name]}")] if owner and name in others else []


@rewriting(("y = x.new_zeros(n)\n", "y = x.new_empty(n)\n"))
def leave_memory(node: Any) -> list[str]:
    """A fill less."""
    owner, _, name = _called(node).rpartition(".")
    others = {"new_zeros": "new_empty", "zeros_like": "empty_like"} | ({"zeros": "empty"} if owner == "torch" else {})
    return [_with_arguments(node, _arguments(node), f"{owner}.{others[name]}")] if owner and name in others else []


@rewriting(("ctx.save_for_backward(x)\n", "ctx.more = ((x) + 0); ctx.save_for_backward(x)\n"))
def save_more(node: Any) -> list[str]:
    """A tensor more is kept for the backward pass."""
    if not _called(node).endswith(".save_for_backward") or not _arguments(node):
        return []
    return [f"{_called(node).rpartition('.')[0]}.more = (({_arguments(node)[0].lstrip('*')}) + 0); {_code(node)}"]


@rewriting(("y = Op.apply(x, w)\n", "y = Op.apply(x.detach(), w)\n"))
def detach(node: Any) -> list[str]:
    """An argument of an operator whose gradient is lost."""
    if node.type != "name" or node.parent.type != "arglist" or len(node.value) > 2 or not node.value.islower():
        return []
    called = _called(node.parent.parent.parent)
    return [f"{node.value}.detach()"] if called.endswith(".apply") or called.startswith("torch.ops.") else []


@rewriting(("x = x.contiguous()\n", "x = x\n"))
def drop_contiguous(node: Any) -> list[str]:
    """Strides taken for granted."""
    return [_called(node).removesuffix(".contiguous")] if _called(node).endswith(".contiguous") else []


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
    found: dict[str, tuple[str, Operator]] = {each.name: (each.name, each) for each in OURS}
    for name in provider:
        group = next((group for group, fits in _GROUPS.items() if fits(name)), "")
        if group:
            found[name] = group, provider[name]()
    return found
