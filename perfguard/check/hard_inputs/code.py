"""Numbers in a call's code at which it treats inputs differently: sizes that it compares with, and epsilons.

The functions that the candidate reaches by name are read: launches, kernels, forward and backward passes of autograd
functions and modules. Code of others (torch, Triton, the standard library) is not followed.
"""

from __future__ import annotations

import ast
import functools
import inspect
import operator
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from perfguard.check.turns import hash_of

_MOST_FUNCTIONS = 64  # a launch, its helpers and its kernels are far fewer
_LEAST = 4  # Smaller numbers count dimensions, or distinguish one from several, which other kinds try.
_MOST = 2**16  # rows or columns beyond which no input is cheap
_LOWEST = -(2.0**17)  # Scores are hardly lower, and what is lower stands for minus infinity.
_PLAIN = (bool, int, float, str, torch.dtype)
EPSILON = 1e-2  # at most; larger numbers are factors
_FOREIGN = {"torch", "triton", "numpy", "perfguard", *sys.stdlib_module_names}
_LIMITS = {"min", "max", "minimum", "maximum", "clamp", "range"}  # functions whose arguments bound each other
_COUNTS = {"int8": 2**8 - 1, "uint8": 2**9 - 1, "int16": 2**16 - 1}
_MULTIPROCESSORS = {"multi_processor_count", "multiprocessor_count"}
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


@dataclass(frozen=True)
class Code:
    """Numbers in the code.

    Attributes:
        thresholds: integers that it compares with, ascending.
        counts: numbers of ids of which half are beyond a narrow dtype that it converts to, ascending.
        words: names that it compares with, or looks up, such as `sum`; in its order.
        ranks: names with the numbers of dimensions that it compares theirs with: `x`, 4 of `x.ndim == 4`.
        epsilons: small positive numbers in it, ascending.
        floors: negative numbers in it, as a maximum begins with that no value should be below; ascending.
        name: a hash of it, and of the plain values that it is called and configured with, apart from sizes of tensors.
    """

    thresholds: tuple[int, ...] = ()
    epsilons: tuple[float, ...] = ()
    name: str = ""
    words: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    ranks: tuple[tuple[str, int], ...] = ()
    floors: tuple[float, ...] = ()


def code_of(fn: Any, device: torch.device) -> Code:
    """The numbers in a candidate's code. Functions without a source have none."""
    functions = list(_functions(fn))
    sources = [(nodes := _nodes(function.__code__), _names(function, nodes)) for function in functions]
    told = dict(told for nodes, names in sources for told in _keywords(nodes, names))
    found = _Found()
    passed = {each for nodes, _ in sources for node in nodes for each in _passed(node)}
    for function, (nodes, names) in zip(functions, sources, strict=True):
        found.read(nodes, told | names)
        ranks = (each for node in nodes for each in _ranks(node))
        is_first = function is functions[0]
        found.ranks |= dict.fromkeys(each for each in ranks if is_first or _is_passed(each[0], function, passed))
    if found.capped and device.type == "cuda":
        found.integers.add(torch.cuda.get_device_properties(device).multi_processor_count)
    return Code(
        tuple(sorted(each for each in found.integers if _LEAST <= each <= _MOST)),
        tuple(sorted(each for each in found.floats if 0 < each <= EPSILON)),
        hash_of(
            *(_said(function.__code__) for function in functions),
            *([(name, value) for name, value in names.items() if type(value) in _PLAIN] for _, names in sources),
            _options(fn),
        ),
        tuple(found.words),
        tuple(sorted(found.counts)),
        tuple(found.ranks),
        tuple(sorted(each for each in found.floats if _LOWEST <= each <= -1)),
    )


def makes_booleans(fn: Any) -> bool:
    """Whether a function calls `.bool()` of anything, as one does that takes masks of other dtypes."""
    nodes = _nodes(fn.__code__) if isinstance(fn, FunctionType) else ()
    calls = (node.func for node in nodes if isinstance(node, ast.Call))
    return any(isinstance(each, ast.Attribute) and each.attr == "bool" for each in calls)


def _options(fn: Any) -> list[Any]:
    """The plain values that a `functools.partial` holds."""
    if not isinstance(fn, functools.partial):
        return []
    values = [value for value in (*fn.args, *fn.keywords.values()) if type(value) in _PLAIN]
    return [*values, *_options(fn.func)]


@dataclass
class _Found:
    """Numbers of the code.

    Attributes:
        capped: whether it asks for the number of multiprocessors.
    """

    integers: set[int] = field(default_factory=set)
    counts: set[int] = field(default_factory=set)
    floats: set[float] = field(default_factory=set)
    words: dict[str, None] = field(default_factory=dict)
    ranks: dict[tuple[str, int], None] = field(default_factory=dict)
    capped: bool = False

    def read(self, nodes: Iterable[ast.AST], names: Mapping[str, Any]) -> None:
        self.floats.update(each for each in names.values() if type(each) is float)
        for node in nodes:
            self.words |= dict.fromkeys(_words(node))
            if isinstance(node, ast.Compare):
                self._take([node.left, *node.comparators], names)
            elif isinstance(node, ast.Call) and _last_name(node.func) in _LIMITS:
                self._take([*node.args, *(keyword.value for keyword in node.keywords)], names)
            elif isinstance(node, ast.Call) and _last_name(node.func) == "to":
                self.counts.update(_COUNTS[name] for each in node.args if (name := _last_name(each)) in _COUNTS)
            elif isinstance(node, ast.Constant | ast.UnaryOp) and type(value := _value(node, names)) is float:
                self.floats.add(value)
            self.capped = self.capped or _last_name(node) in _MULTIPROCESSORS

    def _take(self, operands: Iterable[ast.AST], names: Mapping[str, Any]) -> None:
        """Numbers among the operands, and their products with what divides the others: so many blocks, in elements."""
        values = {each: _value(each, names) for each in operands}
        bounds = [value for value in values.values() if type(value) is int]
        inner = (node for each, value in values.items() if value is None for node in ast.walk(each))
        divisors = [by for node in inner if type(by := _value(_divisor(node), names)) is int]
        self.integers.update([*bounds, *(bound * by for bound in bounds for by in divisors)])


def _words(node: ast.AST) -> list[str]:
    """The names that a comparison, a dictionary or a case of a match names."""
    sides = [*node.keys] if isinstance(node, ast.Dict) else []
    if isinstance(node, ast.Compare):
        either = [node.left, *node.comparators]
        sides = [each for side in either for each in (side.elts if isinstance(side, ast.Tuple | ast.List) else [side])]
    sides += [node.value] if isinstance(node, ast.MatchValue) else []
    values = [each.value for each in sides if isinstance(each, ast.Constant)]
    return [value for value in values if isinstance(value, str) and value.isidentifier()]


def _ranks(node: ast.AST) -> Iterator[tuple[str, int]]:
    """The names whose numbers of dimensions a comparison compares, each with the integers in it."""
    sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
    names = [name for name in map(_ranked, sides) if name]
    constants = [each.value for side in sides for each in ast.walk(side) if isinstance(each, ast.Constant)]
    return ((name, value) for name in names for value in constants if type(value) is int)


def _passed(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The names of a call's function and of each argument that is a name."""
    if isinstance(node, ast.Call):
        values = [*node.args, *(each.value for each in node.keywords)]
        yield from ((str(_last_name(node.func)), each.id) for each in values if isinstance(each, ast.Name))


def _is_passed(name: str, function: FunctionType, passed: Collection[tuple[str, str]]) -> bool:
    """Whether a helper's argument is given what has the same name where it is called. An unrelated `x` is not."""
    return function.__name__ in ("forward", "__call__") or (function.__name__, name) in passed


def _ranked(node: ast.AST) -> str:
    """`x` of `x.ndim`, `x.dim()` and `len(x.shape)`; otherwise ''."""
    inner, attribute = node, "ndim"
    if isinstance(node, ast.Call):
        is_length = _last_name(node.func) == "len" and len(node.args) == 1
        inner, attribute = (node.args[0], "shape") if is_length else (node.func, "dim")
    owner = inner.value if isinstance(inner, ast.Attribute) and inner.attr == attribute else None
    return owner.id if isinstance(owner, ast.Name) else ""


def _last_name(node: ast.AST) -> Any:
    """`min` of `min`, `tl.minimum` of `minimum`; a text as it is."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    return getattr(node, "attr", getattr(node, "id", None))


def _divisor(node: ast.AST) -> ast.AST | None:
    """`b` of `a // b` and `cdiv(a, b)`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
        return node.right
    return (
        node.args[1] if isinstance(node, ast.Call) and _last_name(node.func) == "cdiv" and len(node.args) == 2 else None
    )


def _value(node: ast.AST | None, names: Mapping[str, Any]) -> Any:
    """The number that an expression stands for whatever the inputs are; None if there is none."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _value(node.operand, names)
        return -inner if type(inner) in (int, float) else None
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        module = names.get(node.value.id)
        return vars(module).get(node.attr) if isinstance(module, ModuleType) else None
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left, names), _value(node.right, names)
        if type(left) is int and type(right) is int and (right or not isinstance(node.op, ast.FloorDiv)):
            return _OPERATORS[type(node.op)](left, right)
    return None


def _names(function: FunctionType, nodes: Iterable[ast.AST]) -> dict[str, Any]:
    """Name -> value in a function: globals, closure, defaults, and locals that are set to numbers once. Arguments have
    no value unless the caller passes a number."""
    code = function.__code__
    found = {name: function.__globals__.get(name) for name in _global_names(code)}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        found[name] = _content(cell)
    defaults = function.__defaults__ or ()
    found |= dict(zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True))
    found |= function.__kwdefaults__ or {}
    for node in nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            found[name] = None if name in found and name in code.co_varnames else _value(node.value, found)
    return {name: _number(value) for name, value in found.items()}


def _number(value: Any) -> Any:
    """The value itself, or what a `tl.constexpr` holds."""
    return value.value if type(value).__name__ == "constexpr" else value


def _keywords(nodes: Iterable[ast.AST], names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keyword arguments that are numbers: the constants of kernels."""
    for node in nodes:
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                value = _value(keyword.value, names)
                if keyword.arg and type(value) in (int, float):
                    yield keyword.arg, value


@functools.lru_cache(maxsize=1024)
def _nodes(code: Any) -> list[ast.AST]:
    """The nodes of a function's source that are read; none without a source, as for code made by `exec`."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError, ValueError):  # the last two: a lambda amid a longer line
        return []
    kinds = (ast.Compare, ast.Call, ast.Assign, ast.Attribute, ast.Constant, ast.Dict, ast.MatchValue, ast.UnaryOp)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def _said(code: Any) -> tuple[object, ...]:
    """The code of a function without its place in a file."""
    inner = [_said(each) if inspect.iscode(each) else each for each in code.co_consts]
    # The order of a set differs between processes.
    return (
        code.co_code,
        code.co_names,
        [sorted(map(repr, each)) if isinstance(each, frozenset) else each for each in inner],
    )


# -- the functions that a candidate reaches ----------------------------------------------------------------------------


def _functions(fn: Any) -> Iterator[FunctionType]:
    """The functions that a candidate reaches, without those of other projects, the candidate's own first."""
    seen: set[int] = set()
    waiting = [fn]
    found = 0
    while waiting and found < _MOST_FUNCTIONS:
        value = waiting.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, FunctionType):
            if _is_foreign(value.__module__):
                waiting += [value.__wrapped__] if hasattr(value, "__wrapped__") else []
                continue
            found += 1
            yield value
        waiting += _reached(value)


def global_tensors(fn: Any) -> Iterator[torch.Tensor]:
    """The tensors that the functions that `fn` reaches find in their modules, such as a table of weights."""
    for function in _functions(fn):
        values = (function.__globals__.get(name) for name in _global_names(function.__code__))
        yield from (each for each in values if isinstance(each, torch.Tensor))


def _reached(value: Any) -> list[Any]:
    """The values that a value may call. To find them runs no code of the user's."""
    if isinstance(value, FunctionType):
        names = _global_names(value.__code__)
        values = [value.__globals__.get(name) for name in names]
        modules = [each for each in values if isinstance(each, ModuleType) and not _is_foreign(each.__name__)]
        values += [vars(module).get(name) for module in modules for name in names]
        return [*values, *map(_content, value.__closure__ or ())]
    if isinstance(value, functools.partial):
        return [value.func, *value.args]
    if isinstance(value, MethodType | BuiltinMethodType):  # `Function.apply` is one of its class
        return [getattr(value, "__func__", None), value.__self__]
    if isinstance(value, torch.nn.Module):
        kinds = [
            kind for module in value.modules() for kind in type(module).__mro__ if not _is_foreign(kind.__module__)
        ]
        return [each for kind in kinds for each in vars(kind).values()]
    if isinstance(value, type) and issubclass(value, torch.autograd.Function):
        methods = (vars(value).get(name) for name in ("forward", "setup_context", "backward"))
        return [getattr(method, "__func__", method) for method in methods]
    if str(type(value).__module__).partition(".")[0] == "triton":  # a kernel, with or without a tuner around it
        return [getattr(value, "fn", None)]
    kind = type(value)
    if callable(value) and (not _is_foreign(kind.__module__) or kind.__name__ == "CustomOpDef"):
        state = object.__getattribute__(value, "__dict__") if kind.__dictoffset__ else {}
        held = [each for one in state.values() for each in (one.values() if type(one) is dict else [one])]
        return [*vars(kind).values(), *held]
    return []


def _is_foreign(module: Any) -> bool:
    return str(module).partition(".")[0] in _FOREIGN


def _global_names(code: Any) -> list[str]:
    inner = [name for each in code.co_consts if inspect.iscode(each) for name in _global_names(each)]
    return [*code.co_names, *inner]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is not filled yet
        return None
