"""Ids that pytest makes of positions, and of odd texts; then a case is put in front.

kind: correct
origin: handed
shows: nothing: the code is the same
words: -
"""
from dataclasses import dataclass

import pytest
import torch

def twice(x):
    return x + x

# ---- test ----
@dataclass
class Shape:
    rows: int
    cols: int

SHAPES = [Shape(16, 32), Shape(64, 8)]  # bad: SHAPES = [Shape(8, 8), Shape(16, 32), Shape(64, 8)]
TEXTS = ["name: a\n  body: [x/y, ü]\n" * 200, "../../etc/x y", "a]b[c", "", "%s", "ä" * 40]

@pytest.mark.parametrize("shape", SHAPES)
def test_shape(perfguard, shape):
    x = torch.randn(shape.rows, shape.cols, device=perfguard.device)
    perfguard(twice, x, reference=lambda x: 2 * x)

@pytest.mark.parametrize("text", TEXTS)
def test_text(perfguard, text):
    x = torch.randn(8, 8 + len(text) % 7, device=perfguard.device)
    perfguard(twice, x, reference=lambda x: 2 * x)

# ---- shows ----
def shows():
    return twice(torch.ones(3)), torch.full((3,), 2.0)
