"""Which mutants there are, and which of them are drawn: in turn by group of operators, so that rare ones are seen."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

from benchmarks.mutation.operators import operators

ROOT = Path(__file__).parents[2]
#: The oracle is what results are held against; shapes and inputs are the tests'.
LEFT_OUT = ("reference.py", "shapes.py", "inputs.py")


@dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes:
        file: below the repository.
        operator: its name in `operators()`.
        occurrence: which of the operator's places in the file.
        line: where it begins, from 1.
        group: of operators.
    """

    file: str
    operator: str
    occurrence: int
    line: int
    group: str

    @property
    def package(self) -> str:
        parts = self.file.split("/")
        return parts[1] if len(parts) > 2 else "kernels"

    def source(self, root: Path = ROOT) -> str:
        """The whole file, changed."""
        _, operator = operators()[self.operator]
        return str(mutate_code((root / self.file).read_text(), operator, self.occurrence))

    def change(self, root: Path = ROOT) -> tuple[str, str]:
        """The first line that differs, before and after."""
        before, after = (root / self.file).read_text().splitlines(), self.source(root).splitlines()
        pairs = ((a, b) for a, b in zip(before, after, strict=False) if a != b)
        return next(((a.strip(), b.strip()) for a, b in pairs), ("", ""))


def files(root: Path = ROOT) -> list[str]:
    """Of `kernels/`, what is mutated."""
    paths = sorted((root / "kernels").rglob("*.py"))
    return [str(path.relative_to(root)) for path in paths if path.name not in LEFT_OUT]


def mutants_of(file: str, root: Path = ROOT) -> Iterator[Mutant]:
    """All of one file."""
    source = (root / file).read_text()
    nodes = list(ast_nodes(get_ast(source)))
    never = _never_run(source)
    for name, (group, operator) in operators().items():
        places = [position for node in nodes for position in operator.mutation_positions(node)]
        for occurrence, ((line, column), _) in enumerate(places):
            if not any(start <= (line, column) < end for start, end in never):
                yield Mutant(file, name, occurrence, line, group)


def drawn(seed: int, root: Path = ROOT) -> Iterator[Mutant]:
    """All mutants in the order of a seed, one of each group in turn; of one place (line and group) the first alone."""
    groups: dict[str, list[Mutant]] = {}
    for file in files(root):
        for mutant in mutants_of(file, root):
            groups.setdefault(mutant.group, []).append(mutant)
    order = random.Random(seed)
    for mutants in groups.values():
        order.shuffle(mutants)
    seen: set[tuple[str, int, str]] = set()
    while groups:
        for group, mutants in sorted(groups.items()):
            while mutants and (mutants[-1].file, mutants[-1].line, group) in seen:
                mutants.pop()
            if not mutants:
                del groups[group]
                continue
            mutant = mutants.pop()
            seen.add((mutant.file, mutant.line, group))
            yield mutant


def _never_run(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where annotations and type aliases stand: Python never computes them, or for readers alone."""
    found = []
    for node in ast.walk(ast.parse(source)):
        parts = []
        if isinstance(node, ast.FunctionDef):
            arguments = [
                *node.args.posonlyargs,
                *node.args.args,
                *node.args.kwonlyargs,
                node.args.vararg,
                node.args.kwarg,
            ]
            parts = [node.returns, *(each.annotation for each in arguments if each is not None)]
        elif isinstance(node, ast.AnnAssign):
            parts = [node.annotation]
        for part in parts:
            if part is not None and part.end_lineno is not None and part.end_col_offset is not None:
                found.append(((part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)))
    return found
