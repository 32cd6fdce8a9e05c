"""The loss of a split vocabulary, as tests have it: its kernels interpreted where no GPU is."""

from __future__ import annotations

import os
from unittest import mock

from tests.kernels.paths import GPU, VARIABLE

# Triton decides when a kernel is defined: whoever imports the module first decides for the process.
with mock.patch.dict(os.environ, {} if GPU else {VARIABLE: "1"}):
    from kernels.parallel.vocab_cross_entropy import (
        count_gradient,
        count_row_parts,
        path,
        reference,
        vocab_parallel_cross_entropy,
    )

__all__ = ["count_gradient", "count_row_parts", "path", "reference", "vocab_parallel_cross_entropy"]
