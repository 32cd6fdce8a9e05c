"""Programs that compile kernels for chips that are not here, in processes whose kernels are not interpreted."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.kernels.paths import VARIABLE
from tests.nursery import Nursery


def compiled(nursery: Nursery, program: str, *arguments: str, seconds: int = 300) -> list[dict[str, Any]]:
    """What `python -m tests.kernels.PROGRAM` prints: an object a line. It finds torch and Triton imported."""
    line = [nursery.python, "-m", f"tests.kernels.{program}", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    output = subprocess.run(
        line,
        check=True,
        capture_output=True,
        text=True,
        timeout=seconds,
        cwd=Path(__file__).parents[2],
        env=environment,
    ).stdout
    return [json.loads(one) for one in output.splitlines()]
