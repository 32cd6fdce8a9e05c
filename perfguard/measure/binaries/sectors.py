"""The used share of a kernel's memory traffic: the mean bytes used of each 32-byte sector that a tile touches.

The source is Triton's intermediate code, in which a load or store is one operation on a whole tile of addresses. An
address is followed back to ranges, constants and arguments. Along each dimension of the tile it has one of three kinds
of steps. A known step is a number, and 1 for neighbours in memory. A far step is unknown, such as a stride passed as an
argument, and counts as far apart. A hidden step belongs to an address that depends on data or on remainders. A tile
with hidden steps is judged by its known steps along other dimensions, and omitted if it has none. Each tile counts
alone, without masks and without caches that keep the rest of a sector for the next tile.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from itertools import zip_longest

SECTOR = 32  # bytes of the smallest transfer on NVIDIA; AMD's caches request at least as many
FAR, HIDDEN = "far", "hidden"
Step = int | str  # the distance of neighbours along a dimension of the tile, in elements

_LINE = re.compile(r"^\s*(?:(%[\w$.-]+)(?::\d+)? = )?([a-z_]+\.[\w.]+)\s*(.*)$")
_VALUE = re.compile(r"%[\w$.-]+(?:#\d+)?")
_TENSOR = re.compile(r"tensor<((?:\d+x)+)(!?[\w.]+(?:<\w+)?)")
_POINTERS = re.compile(r"tensor<((?:\d+x)+)!tt\.ptr<([\w.]+)")
_ARGUMENT = re.compile(r"(%[\w$.-]+): (!tt\.ptr|\w+)")
_WIDTH = re.compile(r"\d+")
_PASSED_ON = ("arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast", "tt.bitcast", "tt.broadcast")
_CLAMPED = ("arith.minsi", "arith.maxsi", "arith.minui", "arith.maxui")


@dataclass(frozen=True)
class _Value:
    """A value's steps along each dimension; empty for a scalar. `value` is the number, if it is known and uniform."""

    steps: tuple[Step, ...] = ()
    value: int | None = None

    @property
    def uniform(self) -> bool:
        return not any(self.steps)


_UNKNOWN = _Value((HIDDEN,) * 8)  # No tile has so many dimensions.


def sector_bytes(ttir: str) -> float:
    """The mean over all loads and stores of tiles in the code, each counted once; 0 if no access can be followed."""
    known: dict[str, _Value] = {}
    used = moved = 0
    for line in ttir.splitlines():
        if line.lstrip().startswith("tt.func"):
            known |= {name: _Value() for name, kind in _ARGUMENT.findall(line) if kind != "tensor"}
            continue
        match = _LINE.match(line.partition(" loc(")[0])
        if match is None:
            continue
        name, operation, rest = match.groups()
        if operation in ("tt.load", "tt.store"):
            one_used, one_moved = _accessed(rest, known)
            used, moved = used + one_used, moved + one_moved
        if operation == "scf.for":
            _enter_loop(name, rest, known)
        elif name is not None and not operation.startswith("scf."):
            known[name] = _hinted(_result_of(operation, rest, known), rest)
    return round(SECTOR * used / moved, 1) if moved else 0.0


def _accessed(rest: str, known: dict[str, _Value]) -> tuple[int, int]:
    """Bytes that a tile uses, and bytes that memory moves for it."""
    pointers = _POINTERS.findall(rest)
    address = _operands(rest, known)[:1]
    if not pointers or not address:
        return 0, 0
    sizes, kind = pointers[0]
    size = _bytes_of(kind)
    steps = address[0].steps
    dims = [(count, step) for count, step in zip(_counts(sizes), steps, strict=False) if count > 1 and step]
    near = [(count, abs(step)) for count, step in dims if isinstance(step, int)]
    if not near and any(step == HIDDEN for _, step in dims):
        return 0, 0
    apart = math.prod(count for count, step in dims if not isinstance(step, int))
    offsets = {0}
    for count, step in near:
        offsets = {offset + number * step for offset in offsets for number in range(count)}
    sectors = {byte // SECTOR for offset in offsets for byte in (offset * size, offset * size + size - 1)}
    return apart * len(offsets) * size, apart * len(sectors) * SECTOR


def _enter_loop(name: str | None, rest: str, known: dict[str, _Value]) -> None:
    """Give the values that a loop carries the steps of their initial values, since iterations move them as a whole."""
    carried = re.findall(r"(%[\w$.-]+) = (%[\w$.-]+(?:#\d+)?)", rest.partition("iter_args(")[2].partition(")")[0])
    for number, (inner, outer) in enumerate(carried):
        given = replace(known.get(outer, _UNKNOWN), value=None)
        known[inner] = given
        if name is not None:
            known[f"{name}#{number}"] = given
            known[name] = given
    known[rest.split(maxsplit=1)[0]] = _Value()


def _result_of(operation: str, rest: str, known: dict[str, _Value]) -> _Value:
    operands = _operands(rest, known)
    shapes = _TENSOR.findall(rest)
    rank = len(_counts(shapes[-1][0])) if shapes else 0
    if operation == "arith.constant":
        number = re.match(r"(?:dense<)?(-?\d+)>? :", rest)
        return _Value((0,) * rank, int(number[1]) if number else None)
    if operation == "tt.make_range":
        return _Value((1,))
    if operation == "tt.splat":
        return _Value((0,) * rank, operands[0].value)
    if operation in ("tt.expand_dims", "tt.trans"):
        return _reordered(operands[0], rest)
    if operation in _PASSED_ON:
        return operands[0]
    if operation in ("arith.addi", "arith.subi", "tt.addptr") and len(operands) == 2:
        return _sum(operands[0], operands[1], -1 if operation == "arith.subi" else 1)
    if operation in ("arith.muli", "arith.shli") and len(operands) == 2:
        return _product(operands[0], operands[1], shifted=operation == "arith.shli")
    if operation in _CLAMPED and any(each.uniform for each in operands):
        return replace(next((each for each in operands if not each.uniform), operands[0]), value=None)
    return _Value(tuple(HIDDEN if _differs(operands, rank, number) else 0 for number in range(rank)))


def _differs(operands: list[_Value], rank: int, dimension: int) -> bool:
    """Whether the result of an unknown operation on the operands may differ along the dimension."""
    if operands and all(each.uniform for each in operands):
        return False
    return not operands or any(len(each.steps) != rank or bool(each.steps[dimension]) for each in operands)


def _sum(a: _Value, b: _Value, sign: int) -> _Value:
    steps: list[Step] = []
    for one, other in zip_longest(a.steps, b.steps, fillvalue=0):
        if HIDDEN in (one, other):
            steps.append(HIDDEN)
        elif isinstance(one, int) and isinstance(other, int):
            steps.append(one + sign * other)
        else:
            steps.append(FAR)
    value = None if a.value is None or b.value is None else a.value + sign * b.value
    return _Value(tuple(steps), value)


def _product(a: _Value, b: _Value, *, shifted: bool) -> _Value:
    if not b.uniform and not shifted:
        a, b = b, a
    if not b.uniform:
        both = zip_longest(a.steps, b.steps, fillvalue=0)
        return _Value(tuple(HIDDEN if one or other else 0 for one, other in both))
    factor = b.value if b.value is None or not shifted else 1 << b.value
    steps = tuple(_times(step, factor) for step in a.steps or b.steps)
    return _Value(steps, None if a.value is None or factor is None else a.value * factor)


def _times(step: Step, factor: int | None) -> Step:
    if not step or step == HIDDEN or factor == 0:
        return 0 if factor == 0 else step
    return step * factor if isinstance(step, int) and factor is not None else FAR


def _reordered(given: _Value, rest: str) -> _Value:
    axis = re.search(r"axis = (\d+)", rest)
    if axis is not None:
        return replace(given, steps=(*given.steps[: int(axis[1])], 0, *given.steps[int(axis[1]) :]))
    order = re.search(r"order = array<i32: ([\d, ]+)>", rest)
    assert order is not None
    return replace(given, steps=tuple(given.steps[int(number)] for number in order[1].split(",")))


def _hinted(given: _Value, rest: str) -> _Value:
    """Apply the author's hints on contiguity, which the compiler cannot see."""
    hint = re.search(r"tt\.contiguity = dense<\[?([\d, ]+)\]?>", rest)
    if hint is None:
        return given
    runs = [int(number) for number in hint[1].split(",")]
    runs = runs if len(runs) == len(given.steps) else runs[:1] * len(given.steps)
    return replace(given, steps=tuple(1 if run > 1 else step for run, step in zip(runs, given.steps, strict=True)))


def _operands(rest: str, known: dict[str, _Value]) -> list[_Value]:
    return [known.get(name, _UNKNOWN) for name in _VALUE.findall(rest.partition(" : ")[0])]


def _counts(sizes: str) -> list[int]:
    return [int(size) for size in sizes.rstrip("x").split("x")]


def _bytes_of(kind: str) -> int:
    """The bytes of an element: 2 for `bf16`, 1 for `f8E4M3FN`, 8 for pointers."""
    width = _WIDTH.search(kind)
    return max(1, int(width[0]) // 8) if width else 8
