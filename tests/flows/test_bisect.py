"""`perfguard bisect`: which commit, and which release of a package, made a case worse."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from perfguard import ExitStatus
from tests.flows.conftest import Project

pytestmark = pytest.mark.nightly  # Each compares a dozen commits in processes of their own.


@pytest.fixture
def environment(project: Project, tmp_path: Path) -> dict[str, str]:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    project.configure(device="fake", case_seconds=0.05)
    return os.environ | {"TMPDIR": str(temporary)}


def bisected(project: Project, environment: dict[str, str], *arguments: str) -> str:
    line = [sys.executable, "-m", "perfguard", "bisect", *arguments]
    done = subprocess.run(line, cwd=project.path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == ExitStatus.PASSED, done.stdout + done.stderr
    assert list(Path(environment["TMPDIR"]).glob("perfguard-bisect-*")) == []
    assert len(project.git("worktree", "list").splitlines()) == 1
    return done.stdout


def test_the_culprit_of_twenty_commits_is_named_with_its_cause(project: Project, environment: dict[str, str]) -> None:
    """One of them cannot be imported, and a launch comes with the 13th."""
    project.kernel()
    project.commit()
    good = project.git("rev-parse", "HEAD").strip()
    kernel = project.path / "kernel.py"
    for number in range(1, 21):
        project.kernel(launches=3 if number >= 13 else 1)
        broken = "raise RuntimeError\n" if number == 10 else ""
        kernel.write_text(f"{broken}{kernel.read_text()}NUMBER = {number}\n")
        project.git("add", "--all")
        project.git("commit", "--quiet", f"--message=number {number}")
    said = bisected(project, environment, good, "--", "-k", "64")
    first = next(line for line in said.splitlines() if "first bad commit" in line)
    assert first.endswith(": number 13")
    assert "skipped: no case was compared" in said
    assert "launches 1 -> 3" in said.partition("beside its parent")[2]


def wheel(folder: Path, version: str, launches: int) -> None:
    name = f"dialect-{version}"
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as file:
        file.writestr("dialect.py", f"LAUNCHES = {launches}\n")
        file.writestr(f"{name}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: dialect\nVersion: {version}\n")
        file.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{name}.dist-info/RECORD", "")


def test_the_release_of_a_package_is_named(project: Project, environment: dict[str, str], tmp_path: Path) -> None:
    wheels, installed = tmp_path / "wheels", tmp_path / "installed"
    wheels.mkdir()
    installed.mkdir()
    for version, launches in (("1.0", 1), ("1.1", 1), ("1.2", 3)):
        wheel(wheels, version, launches)
    (installed / "dialect.py").write_text("LAUNCHES = 3\n")
    project.kernel(launches=1)
    kernel = project.path / "kernel.py"
    assert "range(1)" in kernel.read_text()
    kernel.write_text("import dialect\n" + kernel.read_text().replace("range(1)", "range(dialect.LAUNCHES)"))
    project.commit()
    environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(installed), environment.get("PYTHONPATH", "")]))
    said = bisected(project, environment, "--over", "dialect==1.0,1.1,1.2", "--", "-k", "64")
    assert "it became worse after dialect 1.1, in 1.2" in said
    assert "beside 1.2: 1 cases pass" in said
