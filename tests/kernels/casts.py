"""Each cast to 64 bits in kernels/ dropped in turn: whether the addresses tell (`addresses.py`).

    python -m tests.kernels.casts

Prints a JSON object for each cast: file, line, text, and what became of the kernels without it: `caught` (an address
wraps), `refused` (by Triton's compiler), `same` (no difference in Triton's IR), or `missed`.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from triton.compiler.errors import CompilationError
from triton.runtime.jit import JITCallable

from tests.kernels.addresses import Asked, ir_of, launches, module_of
from tests.kernels.intervals import source_of, wrapped

KERNELS = Path(__file__).parents[2] / "kernels"


def functions() -> list[Any]:
    """The jit functions of kernels/."""
    found = {
        (value.__module__, value.__name__): value
        for name, module in sys.modules.items()
        if name.startswith("kernels.")
        for value in vars(module).values()
        if isinstance(value, JITCallable) and value.__module__.startswith("kernels.")
    }
    return [found[key] for key in sorted(found)]


def first_line(function: Any) -> int:
    """The number of its `def` in its file."""
    lines = enumerate(function.raw_src, function.starting_line_number)
    return next(number for number, line in lines if line.lstrip().startswith("def "))


def without_casts(source: str) -> Iterator[tuple[int, str]]:
    """A function without each of its casts: the line of that, counted from 0, and the rest."""
    code = source.encode()
    starts = [0]
    for line in code.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def span(node: ast.expr) -> slice:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return slice(starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset)

    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not any(ast.unparse(each) in _WIDE for each in node.args):
            continue
        whole, called = span(node), node.func
        if isinstance(called, ast.Attribute) and called.attr == "to":
            kept = b"(" + code[span(called.value)] + b")"
        elif isinstance(called, ast.Attribute) and called.attr == "cast":
            kept = b"(" + code[span(node.args[0])] + b")"
        elif isinstance(called, ast.Attribute) and called.attr in ("full", "zeros"):
            kept = code[whole].replace(b"int64", b"int32")
        else:
            continue
        yield node.lineno - 1, (code[: whole.start] + kept + code[whole.stop :]).decode()


_WIDE = "tl.int64", "gl.int64"


def plain(text: str) -> str:
    """IR without places in files."""
    return re.sub(r" loc\([^)]*\)+|^#loc.*$", "", text, flags=re.MULTILINE)


class Known:
    """Launches of one kind, and what is known of them as they are."""

    def __init__(self, first: Asked) -> None:
        self.asked = [first]
        self.text = ir_of(first.kernel, first.arguments, first.arch)

    def wraps(self, text: str) -> set[tuple[str, str]]:
        return {line for one in self.asked for line in wrapped(module_of(one, text).run())}

    def without(self) -> str:
        """What becomes of it as its functions are now."""
        first = self.asked[0]
        try:
            text = ir_of(first.kernel, first.arguments, first.arch)
        except CompilationError:
            return "refused"
        if plain(text) == plain(self.text):
            return "same"
        return "caught" if self.wraps(text) - self.wraps(self.text) else "missed"


def main() -> None:
    kinds: dict[str, Known] = {}
    for asked in launches():
        if asked.kind in kinds:
            kinds[asked.kind].asked.append(asked)
        else:
            kinds[asked.kind] = Known(asked)
    users: dict[tuple[str, int], set[str]] = defaultdict(set)
    for kind, known in kinds.items():
        for place in module_of(known.asked[0], known.text).places.values():
            users[place].add(kind)
    for function in functions():
        first, original = first_line(function), function.src
        file = function.fn.__code__.co_filename
        lines = range(first, first + len(original.splitlines()))
        used = sorted({kind for line in lines for kind in users[file, line]})
        for offset, source in without_casts(original):
            function._unsafe_update_src(source)
            verdict = "same"
            for kind in used:
                found = kinds[kind].without()
                verdict = found if found != "same" else verdict
                if found in ("caught", "refused"):
                    break
            function._unsafe_update_src(original)
            place = file, first + offset
            told = {"file": str(Path(place[0]).relative_to(KERNELS)), "line": place[1], "text": source_of(place)}
            print(json.dumps({**told, "verdict": verdict}), flush=True)


if __name__ == "__main__":
    main()
