"""Without Triton the packages can be imported, and their operators run without kernels.

torch, and the compiler of its that each package asks for, are imported once; each package is then imported in a fork of
that process, as the first one.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SCRIPTS = {
    "grouped": """
        from kernels.grouped import grouped_mm, path, reference
        a, b, offs = torch.randn(8, 4), torch.randn(2, 4, 6), torch.tensor([3, 7], dtype=torch.int32)
        assert path("cpu") == "loop"
        for impl in ("auto", "torch"):
            torch.testing.assert_close(grouped_mm(a, b, offs, impl=impl), reference.grouped_mm(a, b, offs))
    """,
    "block_scaled": """
        from kernels import block_scaled
        a, b_t, offs = torch.randn(8, 16), torch.randn(2, 16, 32), torch.tensor([3, 7], dtype=torch.int32)
        assert block_scaled.path("cpu") == "eager"
        for scaling in ("1x128", "mx"):
            true = block_scaled.reference.grouped_mm(a, b_t, offs, scaling=scaling)
            torch.testing.assert_close(block_scaled.grouped_mm(a, b_t, offs, scaling=scaling), true)
        padded = block_scaled.permute_and_pad(a, torch.tensor([3, 4]), 16)
        assert block_scaled.unpermute(padded.rows, padded)[:7].equal(a[:7])
        from kernels.parallel.vocab_cross_entropy import reference, vocab_parallel_cross_entropy
        target = torch.tensor([0, 8, 2, -100, 3, 1, 1, 15])
        torch.testing.assert_close(vocab_parallel_cross_entropy(a, target), reference(a, target))
    """,
    "operators": """
        from kernels import operators
        assert operators.path("cpu") == "eager"
        logits = torch.randn(4, 9, requires_grad=True)
        operators.cross_entropy(logits, torch.tensor([0, 8, 2, -100])).backward()
        assert logits.grad[3].eq(0).all() and logits.grad[0].ne(0).all()
        operators.linear_cross_entropy(logits, logits, torch.tensor([0, 3, 2, -100]), softcap=5.0).backward()
        assert operators.silu_mul(torch.ones(2), torch.ones(2)).shape == (2,)
    """,
    "fp8": """
        from kernels import fp8
        from kernels.fp8 import reference
        x = torch.randn(8, 8)
        assert fp8.path("cpu") == "eager"
        assert fp8.quantize_rowwise(x)[0].view(torch.uint8).equal(
            reference.quantize_rowwise(x)[0].view(torch.uint8)
        )
    """,
}

# Says which scripts ended well; why another one did not stands in its traceback.
PROGRAM = """
import os, sys
sys.modules["triton"] = None
import torch, torch._dynamo
for name, script in zip(sys.argv[1::2], sys.argv[2::2]):
    child = os.fork()
    if not child:
        exec(script, {"torch": torch})
        sys.exit()
    if os.waitpid(child, 0)[1] == 0:
        print(name, flush=True)
"""


@pytest.fixture(scope="module")
def done() -> subprocess.CompletedProcess[str]:
    scripts = [word for name, script in SCRIPTS.items() for word in (name, textwrap.dedent(script))]
    line = [sys.executable, "-c", PROGRAM, *scripts]
    return subprocess.run(line, check=True, capture_output=True, text=True, timeout=120, cwd=ROOT)


@pytest.mark.parametrize("package", SCRIPTS)
def test_works_without_triton(package: str, done: subprocess.CompletedProcess[str]) -> None:
    assert package in done.stdout.splitlines(), done.stderr
