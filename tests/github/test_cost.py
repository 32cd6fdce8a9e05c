"""The post job's machine holds no torch; nothing heavy is loaded before it is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = """
import contextlib, sys
sys.modules["torch"] = sys.modules["triton"] = None
from perfguard.cli import main
from perfguard.github.lanes.judge_again import declared
for command in ("comment", "accept"):
    with contextlib.suppress(SystemExit):
        main([command, "--help"])
assert declared("launches")  # of the metrics' own files
print("LOADED", *sys.modules)
"""


def test_comment_and_accept_need_no_torch_and_load_little() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.rpartition("LOADED")[2].split())
    assert "perfguard.github.comment_job" in loaded
    assert not loaded & {"numpy", "scipy", "rich", "pytest", "perfguard.session.run"}
