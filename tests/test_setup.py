"""What `scripts/setup` prints while it sets up: each step as it begins, and how long a step has taken."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Stands for Python and for pip: it has no torch, makes environments of itself, and takes its time to install.
PYTHON = """#!/bin/sh
case "$*" in
  -V) echo Python 3.12.0 ;;
  *"-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  *"pip install"*) /bin/sleep 0.5; echo "$*" >>installed; exit ${FAILS:-0} ;;
  *"import torch"*) exit 1 ;;
  "-") exit 1 ;;
  *"--list oldest"*) echo "triton==3.6.0" ;;
  "- "*) exit 1 ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/setup", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    stand_ins = tmp_path / "stand-ins"
    stand_ins.mkdir()
    for name, text in (("python3", PYTHON), ("sleep", "#!/bin/sh\nexec /bin/sleep 0.1\n")):
        (stand_ins / name).write_text(text)
        (stand_ins / name).chmod(0o755)
    return tmp_path


def set_up(checkout: Path, extras: str = "kernels", **variables: str) -> subprocess.CompletedProcess[str]:
    python = str(checkout / "stand-ins" / "python3")
    paths = f"{checkout / 'stand-ins'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PYTHON": python, "PATH": paths, **variables}
    line = ["bash", "-c", f'source scripts/setup {extras}; echo "then $python"']
    return subprocess.run(line, cwd=checkout, env=environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.skipif(sys.platform == "win32", reason="bash")
def test_each_step_is_printed_as_it_begins_and_while_it_lasts(checkout: Path) -> None:
    done = set_up(checkout, "kernels,dev")
    assert done.returncode == 0, done.stderr
    lines = [line.removeprefix("scripts/setup: ") for line in done.stdout.splitlines()]
    steps = [line for line in lines if " s: " not in line]
    assert steps[0].startswith("installing torch, triton, the tools of development, numpy, scipy, pytest, … into .venv")
    assert steps[1:4] == [
        "making .venv",
        "installing perfguard[kernels,dev], with constraints.txt",
        "installing triton==3.6.0 into .venv/oldest-triton",
    ]
    assert steps[4].startswith("installed in ")
    assert steps[5:] == ["then .venv/bin/python"]
    beats = [line for line in lines if " s: " in line]
    assert beats
    assert all(line.partition(" s: ")[2].startswith(("installing ", "making ")) for line in beats)
    again = set_up(checkout, "kernels,dev")
    assert again.stdout.splitlines() == ["scripts/setup: .venv has all that is needed", "then .venv/bin/python"]


def test_an_installation_that_fails_ends_the_script_and_its_progress(checkout: Path) -> None:
    done = set_up(checkout, FAILS="7")
    assert done.returncode == 7
    assert "then" not in done.stdout
    assert "installed in" not in done.stdout
