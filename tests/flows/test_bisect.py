"""Which commit made a case worse: the commands of docs/compare.md, as they are written there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flows.conftest import Project
from tests.flows.pages import ROOT


@pytest.mark.nightly  # It compares four commits in processes of their own.
def test_the_commands_of_the_page_name_the_culprit_and_its_cause(project: Project, tmp_path: Path) -> None:
    """Of nine commits one cannot be imported, and launches come with the sixth."""
    project.configure(device="fake", case_seconds=0.05)
    project.kernel()
    project.commit()
    project.git("tag", "v1.4")
    kernel = project.path / "kernel.py"
    for number in range(1, 10):
        project.kernel(launches=3 if number >= 6 else 1)
        broken = "raise RuntimeError\n" if number == 4 else ""
        kernel.write_text(f"{broken}{kernel.read_text()}NUMBER = {number}\n")
        project.git("commit", "--quiet", "--all", f"--message=number {number}")
    page = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
    found = re.search(r"^```sh\n(git bisect start.*?)git bisect reset\n", page, re.DOTALL | re.MULTILINE)
    assert found is not None
    command = found[1].replace("perfguard compare", f"{sys.executable} -m perfguard compare")
    command = command.replace('"tests/test_norm.py::test_rms_norm[64]"', "-k 64")
    done = subprocess.run(
        command, shell=True, cwd=project.path, env=os.environ, capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    assert "is the first bad commit" in said, said
    assert "number 6" in said.partition("is the first bad commit")[2]
    assert "launches 1 -> 3" in said
