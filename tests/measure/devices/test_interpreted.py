"""What is read of kernels in Triton's interpreter: their launches, and nothing that the interpreter does for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

PROGRAM = """
    import json, torch, triton, triton.language as tl
    from perfguard.measure.devices import operators

    @triton.jit
    def _scale(x, y, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

    def scale(x):
        y = torch.empty_like(x)
        _scale[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
        return y.clone()

    x = torch.randn(100)
    assert torch.equal(scale(x), 2 * x)
    @torch.library.custom_op("perfguard_tests::scale", mutates_args=())
    def whole(x: torch.Tensor) -> torch.Tensor:
        return scale(x)

    found = operators.of_call(lambda: scale(x))
    inside = operators.of_call(lambda: whole(x))
    again = operators.of_call(lambda: x.sum().item())
    copies = [each.name for each in found.copies]
    waits = [len(found.waits), len(inside.waits)]
    print(json.dumps([list(found.launches), copies, waits, list(again.launches), list(inside.launches)]))
"""


def test_a_launch_is_one_operator_and_its_copies_are_the_interpreter_s() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    line = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        ["aten.empty_like", "triton._scale", "aten.clone"],
        ["aten.clone"],
        [0, 0],
        ["aten.sum", "aten._local_scalar_dense"],
        ["perfguard_tests.scale"],
    ]
