"""The loss of a split vocabulary under guard, on one process: its kernels, forward and backward.

Over ranks it is tested in tests/distributed/test_vocab_cross_entropy.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from kernels.operators.shapes import LogitsShape
from perfguard import Work, ids
from tests.kernels.paths import GPU, cases, launch_nothing, open_path
from tests.kernels.vocabulary import path as path_of
from tests.kernels.vocabulary import reference, vocab_parallel_cross_entropy

REAL = (LogitsShape(8192, 16160), LogitsShape(8192, 18992))  # an eighth of DeepSeek-V3's vocabulary, of Qwen3's
MODERATE, SMALL = (LogitsShape(64, 1000), LogitsShape(7, 4099)), (LogitsShape(5, 150), LogitsShape(3, 64))


@pytest.fixture(autouse=True)
def on_path(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open the way that the case takes, and make sure that it is taken."""
    open_path(path, monkeypatch)
    assert path_of(GPU or "cpu") == path
    if path == "eager":
        launch_nothing(monkeypatch)


@cases(REAL, MODERATE, SMALL)
def test_vocab_parallel_cross_entropy(perfguard: Any, shape: LogitsShape, path: str) -> None:
    logits, target = shape.inputs(perfguard.device)
    perfguard(
        vocab_parallel_cross_entropy,
        logits,
        ids(target, shape.vocabulary, ignored=-100),
        reference=reference,
        work=Work(bytes=2 * shape.kept, backward_bytes=2 * shape.kept + 2 * shape.elements),
        timed=path != "interpreter",
    )
