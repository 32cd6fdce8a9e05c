"""What others install: built from the tracked files, checked, and used to guard a foreign folder in an environment that
has what the package declares, and torch, and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import perfguard

ROOT = Path(__file__).parents[1]
VERSION = perfguard.__version__

TEST = """
import torch
from perfguard.testing import fake

def double(x):
    fake.launch("double_kernel", us=50.0)
    return 2 * x

def test_double(perfguard):
    perfguard(double, torch.ones(8, 4), reference=lambda x: 2 * x, timed=False)
"""


def run(*line: object, cwd: Path) -> str:
    """What the command printed; nothing of this checkout is on its path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST_"))}
    done = subprocess.run(list(map(str, line)), cwd=cwd, env=kept, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, line))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel and the source distribution."""
    found = [*metadata.distributions(path=sys.path)]  # asking for modules would find a folder `build`
    here = {own.name: own.version for own in reversed(found)}
    absent = [name for name in ("build", "setuptools", "twine") if name not in here]
    if absent:
        pytest.skip(f"{', '.join(absent)}: not installed; pip install -c constraints.txt -e '.[kernels,dev]'")
    if int(here["setuptools"].partition(".")[0]) < 77:
        pytest.skip("setuptools is older than pyproject.toml asks for; pip install --upgrade setuptools")
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is no checkout of git, whose files would be packed")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    # The wheel is built from the source distribution, so that a file that this lacks is missing in both.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", built, cwd=source)
    return built


@pytest.fixture(scope="module")
def environment(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python with the wheel, with what it declares to need, and with torch; nothing is downloaded."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    (site,) = folder.glob("lib/python*/site-packages")
    (wheel,) = built.glob("*.whl")
    python = folder / "bin" / "python"
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        wheel,
        cwd=folder,
    )
    about = HeaderParser().parsestr(next(site.glob("perfguard-*.dist-info/METADATA")).read_text(encoding="utf-8"))
    for name in needed([*about.get_all("Requires-Dist", []), "torch"]):
        for top in tops(name):
            if not (site / top.name).exists():
                (site / top.name).symlink_to(top)
    return folder


def needed(requirements: list[str]) -> set[str]:
    """Names of the distributions that these need, and those need, as far as they are installed here."""
    found: set[str] = set()
    waiting = [Requirement(each) for each in requirements]
    while waiting:
        requirement = waiting.pop()
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if not wanted or requirement.name in found:
            continue
        try:
            own = metadata.distribution(requirement.name)
        except metadata.PackageNotFoundError:
            continue  # CUDA's libraries, beside a torch that is built for the CPU
        assert requirement.specifier.contains(own.version, prereleases=True), f"{requirement}: {own.version} is here"
        found.add(requirement.name)
        waiting += [Requirement(each) for each in own.requires or []]
    return found


def tops(name: str) -> set[Path]:
    """What the distribution has put into the folder of packages."""
    own = metadata.distribution(name)
    parts = {file.parts[0] for file in own.files or [] if file.parts[0] not in ("..", "__pycache__")}
    return {path for path in (Path(str(own.locate_file(part))) for part in parts) if path.exists()}


def test_one_place_has_the_version(built: Path) -> None:
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert {path.name for path in built.iterdir()} == {
        f"perfguard-{VERSION}-py3-none-any.whl",
        f"perfguard-{VERSION}.tar.gz",
    }


def test_its_description_can_be_shown(built: Path) -> None:
    checked = run(sys.executable, "-m", "twine", "check", "--strict", *built.iterdir(), cwd=built)
    assert checked.count("PASSED") == 2


def test_it_holds_the_tool_and_nothing_of_the_repository(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.partition("/")[0] for name in names} == {"perfguard", f"perfguard-{VERSION}.dist-info"}
    tracked = subprocess.run(["git", "ls-files", "perfguard"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {name for name in names if name.startswith("perfguard/")} == set(tracked.stdout.split())
    assert f"perfguard-{VERSION}.dist-info/licenses/LICENSE" in names
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "perfguard/render/html/page.js", "perfguard/py.typed"} <= packed
    assert not [name for name in packed if name.startswith(("kernels/", "baselines/", "benchmarks/"))]


def test_it_guards_a_foreign_folder(environment: Path, tmp_path: Path) -> None:
    python = environment / "bin" / "python"
    (tmp_path / "pyproject.toml").write_text('[tool.perfguard]\ndevice = "fake"\ntargets = []\n')
    (tmp_path / "test_double.py").write_text(TEST)
    assert run(environment / "bin" / "perfguard", "--version", cwd=tmp_path) == f"perfguard {VERSION}\n"
    where = run(python, "-c", "import perfguard; print(perfguard.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(environment)
    recorded = run(python, "-m", "pytest", "--perfguard", "--perfguard-update=new", cwd=tmp_path)
    assert (tmp_path / "baselines" / "fake-gpu" / "test_double.yaml").is_file(), recorded
    guarded = run(python, "-m", "pytest", "--perfguard", cwd=tmp_path)
    assert re.search(r"perfguard: fake-gpu, 1 of 1 case guarded", guarded), guarded
    report = ".perfguard/report-fake-gpu.json"
    page = run(environment / "bin" / "perfguard", "report", report, "--as", "html", cwd=tmp_path)
    assert "<!doctype html>" in page.lower()  # made of files that are no Python
