"""Section 1.2: wrong. What stands in kernels of fp8, in matmuls, and in layers and operators has a file each."""

from __future__ import annotations

from tests.corpus import wrong_layers, wrong_operators, wrong_products, wrong_quantisers

MUTANTS = [
    *wrong_quantisers.MUTANTS,
    *wrong_products.MUTANTS,
    *wrong_operators.MUTANTS,
    *wrong_layers.MUTANTS,
]
