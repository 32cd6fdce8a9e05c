"""The largest offset that a kernel forms, from Triton's IR of it: interval arithmetic over its operations.

Arguments have the values of one call, a program's number lies below the number of programs, what is loaded lies where
the caller says. Loops are widened by their number of steps. Numbers that may leave their type remember the line that
let them, and so does what is computed of them: `Access.wraps` are the lines behind an address that may have wrapped, or
behind a number of 64 bits that is written. What has no rule here has any value of its type. An interval knows nothing
of what two numbers have to do with each other: a line that only seems to wrap is `argued`, with the argument what its
numbers do not pass.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

NOWHERE = frozenset[tuple[str, int]]()
_VALUE = r"%[\w.$-]+(?:#\d+)?"
_OPERATION = re.compile(r'^(?:(%[\w.$-]+)(?::(\d+))? = )?"?([a-z_]+\.[a-z_0-9.]+)"?(.*)$')


@dataclass(frozen=True)
class Range:
    """A number, or all those of a block; of an address, elements behind what the argument `base` points to."""

    low: int
    high: int
    wraps: frozenset[tuple[str, int]] = NOWHERE
    base: str | None = None

    def join(self, other: Range) -> Range:
        return Range(
            min(self.low, other.low), max(self.high, other.high), self.wraps | other.wraps, self.base or other.base
        )


@dataclass(frozen=True)
class Access:
    """What addresses one line forms of an argument."""

    base: str
    largest: int
    wraps: frozenset[tuple[str, int]]


@cache
def _names(text: str) -> tuple[str, ...]:
    return tuple(re.findall(_VALUE, text.split(" : ", maxsplit=1)[0]))


@cache
def _kind(what: str, rest: str) -> str:
    """The type of what an operation makes."""
    kind = re.split(r" to | -> | : ", rest.split(" loc(", maxsplit=1)[0])[-1]
    kind = (Module.listed(kind) or [""])[-1]
    # A load's is told by what it points to.
    return re.sub(r"!tt\.ptr<(\w+)>", r"\1", kind) if what == "tt.load" else kind


@cache
def bits_of(kind: str) -> int:
    """Of a type as the IR writes it; 0 for what is no whole number."""
    found = re.search(r"(?:^|x)i(\d+)(?:,|>|$)", kind)
    return 64 if kind == "index" else int(found[1]) if found and "ptr" not in kind and "memdesc" not in kind else 0


def any_of(kind: str) -> Range:
    bits = bits_of(kind)
    return Range(0, 1) if bits == 1 else Range(-(1 << bits >> 1), (1 << bits >> 1) - 1)


@dataclass
class Module:
    """The IR of one kernel as text."""

    text: str
    arguments: Mapping[str, int]
    programs: int
    loaded: tuple[int, int]
    argued: Mapping[tuple[str, str], str | int | None] = field(default_factory=dict)
    used: set[tuple[str, str]] = field(default_factory=set)  # of what is argued
    accesses: list[Access] = field(default_factory=list)

    def __post_init__(self) -> None:
        lines = self.text.splitlines()
        self.places: dict[str, tuple[str, int]] = {}
        callers: dict[str, list[str]] = {}
        for line in lines:
            if found := re.match(r'(#loc\d*) = loc\("([^"]+\.py)":(\d+):', line):
                self.places[found[1]] = (found[2], int(found[3]))
            elif found := re.match(r"(#loc\d*) = (loc\(.*)", line):
                callers[found[1]] = re.findall(r"#loc\d*", found[2])
        for name in callers:  # a line of Triton's own is its caller's
            ways = [name]
            while ways and self.places.get(name, ("triton/language",))[0].find("triton/language") >= 0:
                way = ways.pop(0)
                if way in callers:
                    ways = callers[way] + ways
                else:
                    self.places[name] = self.places[way]
        self.lines = [line.strip() for line in lines if not line.startswith("#")]
        self.values: dict[str, Range] = {}
        self.kinds: dict[str, str] = {}
        self.differences: dict[str, tuple[str, ...]] = {}  # of what is subtracted from what
        self.kept = False  # whether accesses are written down: not while a loop is only being widened

    # ---- walking -----------------------------------------------------------------------------------------------------

    def run(self) -> list[Access]:
        start = next(number for number, line in enumerate(self.lines) if line.startswith("tt.func public"))
        for name, kind in re.findall(r"(%[\w.$-]+): (!tt\.ptr<\w+>|[if]\d+|!tt\.tensordesc\S*)", self.lines[start]):
            key = name.removeprefix("%")
            if kind.startswith("!tt.ptr"):
                self.values[name] = Range(0, 0, NOWHERE, key)
            elif bits_of(kind) and key in self.arguments:
                self.values[name] = Range(self.arguments[key], self.arguments[key])
        self.kept = True
        self.block(start + 1)
        return self.accesses

    def block(self, at: int) -> tuple[int, str]:
        """From a line to the end of its region: the number of the line that ends it, and the terminator's operands."""
        ended = ""
        while not self.lines[at].startswith("}"):
            line = self.lines[at]
            operation = _OPERATION.match(line)
            if operation is None:
                if found := re.match(r"partition\d+\((.*)\) num_warps", line):
                    self.bind_partition(found[1])
                    at, _ = self.block(at + 1)
                elif line.startswith("default {"):
                    at, _ = self.block(at + 1)
                at += 1
                continue
            name, count, what, rest = operation.groups()
            if what in ("scf.yield", "scf.condition", "tt.reduce.return", "tt.scan.return"):
                ended = rest
                at += 1
            elif what == "scf.for":
                at = self.loop(at, name, rest)
            elif what == "scf.while":
                at = self.repeat(at, name, rest)
            elif what == "scf.if":
                at = self.branch(at, name)
            elif what in ("tt.reduce", "tt.scan"):
                at = self.combine(at, name, what, rest)
            elif what == "ttg.warp_specialize":
                self.captured = re.findall(_VALUE, rest.split(")")[0])
                at += 1
            else:
                self.operation(name, int(count or 1), what, rest)
                at += 1
        return at, ended

    def bind_partition(self, parameters: str) -> None:
        for name, other in zip(re.findall(r"(%arg\d+):", parameters), self.captured, strict=True):
            if other in self.values:
                self.values[name] = self.values[other]

    def names(self, text: str) -> tuple[str, ...]:
        return _names(text)

    def results(self, name: str | None, values: list[Range | None]) -> None:
        for number, value in enumerate(values):
            if name is not None and value is not None:
                self.values[name if len(values) == 1 else f"{name}#{number}"] = value

    def loop(self, at: int, name: str | None, rest: str) -> int:
        head = re.match(rf" (?:unsigned )?(%[\w.$-]+) = ({_VALUE}) to ({_VALUE}) step ({_VALUE})", rest)
        assert head is not None, rest
        number, low, high, step = head[1], *(self.values[head[index]] for index in (2, 3, 4))
        carried = re.findall(rf"(%[\w.$-]+) = ({_VALUE})", rest[head.end() :].split("->", maxsplit=1)[0])
        kinds = self.listed(rest.split("->")[1].split(")  :", maxsplit=1)[0]) if carried else []
        steps = max(0, -(-(high.high - low.low) // max(step.low, 1)))
        self.values[number] = Range(low.low, max(low.low, high.high - 1), low.wraps | high.wraps | step.wraps)
        starts = [self.values.get(start) for _, start in carried]
        self.results_of(carried, starts)
        end, after = self.quietly(at + 1)
        once = [one and two and one.join(two) for one, two in zip(starts, self.ranges(after), strict=True)]
        self.results_of(carried, once)
        end, after = self.quietly(at + 1)
        widened: list[Range | None] = []
        for kind, start, first, then in zip(kinds, starts, once, self.ranges(after), strict=True):
            if start is None or first is None or then is None:
                widened.append(None)
                continue
            low, high = (
                min(0, then.low - first.low),
                max(0, then.high - first.high),
            )  # nothing, if the first step had all
            grown = Range(
                first.low + steps * low, first.high + steps * high, start.wraps | first.wraps | then.wraps, start.base
            )
            widened.append(grown if grown.base else self.within(grown, kind))
        self.results_of(carried, widened)
        end, after = self.block(at + 1)
        self.results(name, [one and two and one.join(two) for one, two in zip(starts, widened, strict=True)])
        return end + 1

    def repeat(self, at: int, name: str | None, rest: str) -> int:
        carried = re.findall(rf"(%[\w.$-]+) = ({_VALUE})", rest.split(") :", maxsplit=1)[0])
        kinds = self.listed(rest.split(") : (")[1].split(") ->", maxsplit=1)[0]) if carried else []
        starts = [self.values.get(start) for _, start in carried]
        known = [start and (start if start.base else any_of(kind)) for start, kind in zip(starts, kinds, strict=True)]
        self.results_of(carried, known)
        for _ in range(2):  # what is held to bounds inside has these then
            middle, passed = self.quietly(at + 1)
            body = self.pass_on(middle + 1, passed)
            end, after = self.quietly(body)
            known = [
                start and then and (start.join(then)) for start, then in zip(starts, self.ranges(after), strict=True)
            ]
            self.results_of(carried, known)
        middle, passed = self.block(at + 1)
        found = self.ranges(passed)[1:]
        end, _ = self.block(self.pass_on(middle + 1, passed))
        self.results(name, found)
        return end + 1

    def pass_on(self, at: int, passed: str) -> int:
        """The arguments of a loop's body, from what its condition passes on: the line after them."""
        if not self.lines[at].startswith("^bb"):
            return at
        for name, value in zip(re.findall(r"(%[\w.$-]+):", self.lines[at]), self.ranges(passed)[1:], strict=True):
            if value is not None:
                self.values[name] = value
        return at + 1

    def branch(self, at: int, name: str | None) -> int:
        end, first = self.block(at + 1)
        if not self.lines[end].startswith("} else"):
            return end + 1
        values = self.ranges(first)
        end, second = self.block(end + 1)
        both = zip(values, self.ranges(second), strict=True)
        self.results(name, [one and other and one.join(other) for one, other in both])
        return end + 1

    def combine(self, at: int, name: str | None, what: str, rest: str) -> int:
        """A reduction, or a running one."""
        sources = re.findall(_VALUE, rest.split("<{", maxsplit=1)[0])
        body = []
        while not self.lines[at].startswith("})"):
            at += 1
            body.append(self.lines[at])
        kinds = self.listed(self.lines[at].split("->")[1])
        shape = re.search(r"tensor<((?:\d+x)+)", self.lines[at])
        axis = re.search(r"axis = (\d+)", rest)
        length = int(shape[1].split("x")[int(axis[1])]) if shape and axis else 1
        found: list[Range | None] = []
        for source, kind in zip(sources, kinds, strict=False):
            value = self.values.get(source)
            if value is not None and any("arith.addi" in line for line in body) and bits_of(kind):
                total = Range(min(0, length * value.low), max(0, length * value.high), value.wraps)
                value = self.within(total, kind, self.place(self.lines[at]) if bits_of(kind) >= 32 else None)
            found.append(value)
        self.results(name, found)
        return at + 1

    def quietly(self, at: int) -> tuple[int, str]:
        kept, self.kept = self.kept, False
        end = self.block(at)
        self.kept = kept
        return end

    def results_of(self, carried: list[tuple[str, str]], values: list[Range | None]) -> None:
        for (name, _), value in zip(carried, values, strict=True):
            if value is not None:
                self.values[name] = value
            else:
                self.values.pop(name, None)

    def ranges(self, operands: str) -> list[Range | None]:
        return [self.values.get(name) for name in self.names(operands)]

    @staticmethod
    def listed(text: str) -> list[str]:
        """The types of a list, which may themselves hold commas."""
        found, depth, word = [], 0, ""
        for letter in text.split(" loc(", maxsplit=1)[0].strip().strip("()"):
            depth += (letter in "<[({") - (letter in ">])}")
            if letter == "," and depth == 0:
                found.append(word.strip())
                word = ""
            else:
                word += letter
        return [*found, word.strip()] if word.strip() else found

    # ---- operations --------------------------------------------------------------------------------------------------

    def place(self, line: str) -> tuple[str, int]:
        end = line.rfind("loc(#loc")
        return self.places.get(line[end + 4 : line.find(")", end)], ("", 0)) if end >= 0 else ("", 0)

    def within(self, value: Range, kind: str, place: tuple[str, int] | None = None) -> Range:
        """What is left of it in its type, and who let it leave."""
        full = any_of(kind)
        line = named(place) if place else ("", "")
        if line in self.argued:
            most = self.argued[line]
            high = full.high if most is None else most if isinstance(most, int) else self.told(most)
            if value.low < 0 or value.high > high:
                self.used.add(line)
                return Range(0, min(max(value.high, 0), high), value.wraps, value.base)
        if full.low <= value.low and value.high <= full.high:
            return value
        wraps = value.wraps if place is None else value.wraps | {place}
        return Range(full.low, full.high, wraps, value.base)

    def told(self, most: str) -> int:
        """Of an expression of arguments, where one that is not there is 0."""
        return int(eval(most, {"__builtins__": {}}, defaultdict(int, self.arguments)))

    def operation(self, name: str | None, count: int, what: str, rest: str) -> None:
        names = self.names(rest)
        kind = _kind(what, rest)
        place = self.place(rest)
        values = [self.values.get(each) for each in names]
        if what == "tt.addptr":
            pointer, offset = values
            assert pointer is not None, rest
            assert offset is not None, rest
            reached = Range(
                pointer.low + offset.low, pointer.high + offset.high, pointer.wraps | offset.wraps, pointer.base
            )
            self.values[name or ""] = reached
            if self.kept:
                largest = max(abs(reached.low), abs(reached.high))
                self.accesses.append(Access(pointer.base or "", largest, reached.wraps))
            return
        if self.kept and what in ("tt.store", "tt.atomic_rmw") and "!tt.ptr<i64>" in rest and values[1] is not None:
            self.accesses.append(Access("", 0, values[1].wraps))  # whoever writes 64 bits means them
        if name is None:
            return
        if what in _MOVES or (what == "arith.select" and "!tt.ptr" in kind):
            moved = [value for value in values if value is not None and (value.base or "!tt.ptr" not in kind)]
            if moved:
                both = moved[0]
                for other in moved[1:]:
                    both = both.join(other)
                self.results(name, [both] * count)
            return
        if not bits_of(kind):
            return
        if what == "arith.subi":
            self.differences[name] = names
            minuend, other = self.differences.get(names[1], ("", ""))
            if minuend == names[0] and other in self.values:  # a - (a - b), which not every compiler makes b
                self.values[name] = self.values[other]
                return
        self.values[name] = self.number(what, rest, kind, values, place)

    def number(self, what: str, rest: str, kind: str, values: list[Range | None], place: tuple[str, int]) -> Range:
        if what == "arith.constant":
            found = re.search(r"(?:dense<)?(-?\d+|true|false)>? ", rest + " ")
            value = {"true": 1, "false": 0}.get(found[1]) if found else None
            value = int(found[1]) if found and value is None else value
            return any_of(kind) if value is None else Range(value, value)
        if what == "tt.make_range":
            end = re.search(r"end = (\d+)", rest)
            return Range(0, int(end[1]) - 1 if end else 0)
        if what == "tt.get_program_id":
            return Range(0, self.programs - 1)
        if what == "tt.get_num_programs":
            return Range(self.programs, self.programs)
        if what in ("tt.load", "tt.atomic_rmw"):
            full = any_of(kind)
            found = Range(max(self.loaded[0], full.low), min(self.loaded[1], full.high))
            return found.join(values[2]) if what == "tt.load" and len(values) == 3 and values[2] else found
        if what == "arith.cmpi":
            return Range(0, 1)
        known = [any_of(kind) if value is None else value for value in values]
        rule = _RULES.get(what)
        wraps = NOWHERE.union(*(value.wraps for value in known)) if known else NOWHERE
        if rule is None:
            return replace(any_of(kind), wraps=wraps)
        low, high = rule(*known)
        # Fewer bits are those of elements.
        return self.within(Range(low, high, wraps), kind, place if bits_of(kind) >= 32 else None)


_MOVES = {
    "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "tt.join", "tt.split", "tt.gather",
    "ttg.convert_layout", "tt.bitcast", "arith.bitcast", "tt.unsplat",
}  # fmt: skip


def _products(one: Range, other: Range) -> tuple[int, int]:
    found = [a * b for a in (one.low, one.high) for b in (other.low, other.high)]
    return min(found), max(found)


def _quotients(one: Range, other: Range) -> tuple[int, int]:
    if other.high < 1:
        return min(one.low, -one.high), max(one.high, -one.low)
    found = [
        int(a / b) if abs(a) < 1 << 52 else a // b for a in (one.low, one.high) for b in (max(other.low, 1), other.high)
    ]
    return min(found), max(found)


def _remainders(one: Range, other: Range) -> tuple[int, int]:
    most = max(abs(other.low), abs(other.high)) - 1
    return (0 if one.low >= 0 else -most), min(most, max(one.high, 0))


def _ands(one: Range, other: Range) -> tuple[int, int]:
    bounds = [each.high for each in (one, other) if each.low >= 0]
    return (0, min(bounds)) if bounds else (min(one.low, other.low) * 2, max(one.high, other.high))


def _ors(one: Range, other: Range) -> tuple[int, int]:
    if one.low < 0 or other.low < 0:
        return min(one.low, other.low), max(one.high, other.high)
    return max(one.low, other.low), (1 << max(one.high, other.high).bit_length()) - 1


_RULES: dict[str, Callable[..., tuple[int, int]]] = {
    "arith.addi": lambda a, b: (a.low + b.low, a.high + b.high),
    "arith.subi": lambda a, b: (a.low - b.high, a.high - b.low),
    "arith.muli": _products,
    "arith.divsi": _quotients,
    "arith.remsi": _remainders,
    "arith.minsi": lambda a, b: (min(a.low, b.low), min(a.high, b.high)),
    "arith.maxsi": lambda a, b: (max(a.low, b.low), max(a.high, b.high)),
    "arith.select": lambda _, a, b: (min(a.low, b.low), max(a.high, b.high)),
    "arith.andi": _ands,
    "arith.ori": _ors,
    "arith.extsi": lambda a: (a.low, a.high),
    "arith.trunci": lambda a: (a.low, a.high),
    "arith.extui": lambda a: (a.low, a.high) if a.low >= 0 else (0, (1 << 64) - 1),
    "arith.shli": lambda a, b: (
        _products(a, Range(1 << max(b.low, 0), 1 << min(b.high, 64))) if b.low >= 0 else (a.low, a.high)
    ),
    "arith.shrsi": lambda a, b: (
        (a.low >> b.low, a.high >> b.low) if 0 <= b.low == b.high else (min(a.low, 0), max(a.high, 0))
    ),
    "tt.elementwise_inline_asm": lambda *_: (-(1 << 31), (1 << 31) - 1),
}


@cache
def source_of(place: tuple[str, int]) -> str:
    """The text of a line."""
    file, number = place
    return Path(file).read_text(encoding="utf-8").splitlines()[number - 1].strip() if file else "?"


@cache
def named(place: tuple[str, int]) -> tuple[str, str]:
    """File and text of a line."""
    return Path(place[0]).name, source_of(place)


def wrapped(accesses: list[Access]) -> Iterator[tuple[str, str]]:
    """File and text of the lines that let an address wrap, each once."""
    for place in sorted({place for access in accesses for place in access.wraps}):
        yield named(place)
