"""Section 1.2: wrong."""

from __future__ import annotations

from tests.corpus.mutant import Edit, Expect, Mutant

MUTANTS = [
    Mutant(
        name="the grid loses the last tile",
        classes=("K30",),
        imitates="FI#5090: a grid by floor division leaves the tail unwritten",
        suite="gate",
        apply=(
            Edit(
                "kernels/operators/silu_mul.py",
                "    grid = (cdiv(rows, config.rows) * cdiv(width, config.columns),)",
                "    grid = (max(1, rows // config.rows) * max(1, width // config.columns),)",
            ),
        ),
        shown={"I": Expect("WRONG", cases=("gate[ragged]/*",), says=("output: depends on old memory: ",))},
    ),
]
