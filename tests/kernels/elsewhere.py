"""Programs that compile kernels for chips that are not here, in processes whose kernels are not interpreted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.kernels.paths import VARIABLE
from tests.nursery import Nursery


def compiled(nursery: Nursery, program: str, *arguments: str, seconds: int = 300) -> list[dict[str, Any]]:
    """What `python -m tests.kernels.PROGRAM` prints: an object a line. It finds torch and Triton imported."""
    return _printed([nursery.python, "-m", f"tests.kernels.{program}", *arguments], {}, seconds)


def compiled_by(triton: Path, program: str, *arguments: str, seconds: int = 300) -> list[dict[str, Any]]:
    """The same with another Triton, of a folder that pip has put it into."""
    line = [sys.executable, "-m", f"tests.kernels.{program}", *arguments]
    return _printed(line, {"PYTHONPATH": str(triton)}, seconds)


def _printed(line: list[str], variables: Mapping[str, str], seconds: int) -> list[dict[str, Any]]:
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    run = subprocess.run(
        line,
        check=False,
        capture_output=True,
        text=True,
        timeout=seconds,
        cwd=Path(__file__).parents[2],
        env={**environment, **variables},
    )
    assert run.returncode == 0, run.stderr
    return [json.loads(one) for one in run.stdout.splitlines()]
