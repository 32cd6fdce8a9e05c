"""The compiling process leaves out what never reaches a binary."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.measure.metrics.binaries import PRODUCT

# Compiles twice, as asked for and as the worker does it, and tells of both: overflow checks before any pass, code.
PROGRAM = """
import json, sys

import product, torch
from perfguard.measure.binaries import compile_worker as worker
from perfguard.measure.binaries.forked_recorder import record_elsewhere
from perfguard.measure.binaries.launch_recorder import Driver
from perfguard.measure.binaries.targets import TARGETS

x, target = torch.zeros(64, 64, dtype=torch.bfloat16), TARGETS[sys.argv[1]]


def trace(recorder):
    product.call(x, x)


(recording,) = record_elsewhere(trace, [target], 60.0)
assert not recording.problem, recording.problem
built = []
for options in (lambda given: given, worker._unchecked):
    asked = []

    def noted(given):
        asked.append(options(given)["sanitize_overflow"])
        return options(given)

    worker_options, worker._unchecked = worker._unchecked, noted
    answer = worker.answer(worker.Request(target.name, recording.launches[0], list(sys.path)))
    worker._unchecked = worker_options
    assert not answer.facts.error, answer.facts.error
    built.append([asked, answer.facts.binary, answer.code.hex(), answer.facts.registers])
print(json.dumps(built))
"""


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_overflow_checks_that_nothing_asserts_are_not_in_the_binary(target: str, tmp_path: Path) -> None:
    (tmp_path / "product.py").write_text(PRODUCT, encoding="utf-8")
    with tempfile.TemporaryDirectory() as cache:
        environment = {"PATH": "/usr/bin:/bin", "TRITON_CACHE_DIR": cache, "TRITON_DISABLE_LINE_INFO": "1"}
        environment["PYTHONPATH"] = f"{tmp_path}:{':'.join(filter(None, sys.path))}"
        line = [sys.executable, "-c", PROGRAM, target]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    checked, unchecked = json.loads(done.stdout)
    assert (checked[0], unchecked[0]) == ([True], [False])
    assert checked[1:] == unchecked[1:]
