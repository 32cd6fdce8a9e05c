"""The programs in benchmarks/ still find what they measure: they run by hand, rarely, and on lent machines."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from benchmarks.pairs import __main__ as pairs
from benchmarks.pairs.plants import FAMILIES, Family
from benchmarks.planting import Edit, planted_in
from tests.nursery import Nursery

ROOT = Path(__file__).parents[1]
PROGRAM = """
import importlib, pkgutil, benchmarks
for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks."):
    if ".test_" not in module.name and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
from benchmarks import screen
assert len(screen.follow([])) > 5
"""


def test_every_benchmark_finds_what_it_measures(interpreting: Nursery) -> None:
    line = [interpreting.python, "-c", PROGRAM]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


KERNEL = """
from perfguard.testing import fake


def double(x, n):
    fake.launch("double", us=20.0 + n, binary="code")
    return 2 * x
"""
TEST = """
import kernel
import pytest
import torch


@pytest.mark.parametrize("n", range(3))
def test_double(perfguard, n):
    perfguard(lambda x: kernel.double(x, n), torch.ones(8), reference=lambda x: 2 * x)
"""
SETTINGS = """
[tool.pytest.ini_options]
pythonpath = ["."]
[tool.perfguard]
case_seconds = 0.05
targets = []
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Files alone, as a lent machine gets them: one suite of a simulated kernel."""
    made = tmp_path / "checkout"
    (made / "tests" / "kernels").mkdir(parents=True)
    (made / "tests" / "kernels" / "test_tiny_guarded.py").write_text(TEST)
    (made / "kernel.py").write_text(KERNEL)
    (made / "pyproject.toml").write_text(SETTINGS)
    (made / ".gitignore").write_text(".perfguard/\n__pycache__/\n")
    return made


@pytest.fixture
def run_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nursery: Nursery) -> Any:
    """Runs the program on the simulated device, and gives what it kept, by step."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setattr(sys, "executable", nursery.python)

    def run(*arguments: str) -> dict[str, Any]:
        out = tmp_path / "out"
        line = ["pairs", "--out", str(out), "--device", "fake", "--suites", "tiny", *arguments]
        monkeypatch.setattr(sys, "argv", line)
        assert pairs.main() == 0
        return {each["step"]: each for each in json.loads((out / "pairs.json").read_text())}

    return run


def words(entry: dict[str, Any]) -> list[str]:
    return [row["word"] for row in entry["rows"] if row["metric"] == "device_time_us"]


@pytest.mark.nightly
def test_pairs_of_a_suite(
    run_pairs: Any, checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All that moved in no speed is paired and passes, a worse kernel is found, and what a run costs is known. What is
    done is not done again."""
    slower = Family(
        "tiny", "0 or 1", Edit("kernel.py", 'us=20.0 + n, binary="', 'us=24.0 + n, binary="slower '), "a fifth"
    )
    monkeypatch.setattr(pairs, "FAMILIES", {"worse": slower})
    monkeypatch.setattr(pairs, "CHANGED", (0, 2))
    arguments = "--checkout", str(checkout), "--only", "aa", "families", "cost"
    found = run_pairs(*arguments)
    assert list(found) == ["record tiny", "aa tiny", "families worse", "cost 0", "cost 2"]
    assert list(found["record tiny"]["covered"].values()) == [1] * 3
    assert words(found["aa tiny"]) == ["PASS"] * 3
    assert min(row["pairs"] for row in found["aa tiny"]["rows"] if row["metric"] == "device_time_us") >= 2
    assert words(found["families worse"]) == ["SLOWER"] * 2
    assert words(found["cost 0"]) == ["UNCHANGED"] * 3
    assert sorted(words(found["cost 2"])) == ["PASS", "PASS", "UNCHANGED"]
    assert "| aa, together | device_time_us | 3 PASS |" in capsys.readouterr().out
    shutil.rmtree(checkout / "tests")
    assert run_pairs(*arguments) == found


@pytest.mark.parametrize("found", [pytest.param(True, marks=pytest.mark.nightly), False])
def test_all_suites_are_recorded_where_perfguard_is_not_installed(found: bool, checkout: Path, tmp_path: Path) -> None:
    """But only where pytest finds them. Here are the files of a clone, and packages that perfguard needs."""
    files = tmp_path / "files"
    for folder in ("perfguard", "benchmarks", "kernels", "tests"):
        shutil.copytree(ROOT / folder, files / folder, ignore=shutil.ignore_patterns("*.pyc.*"))
    packages = tmp_path / "packages"
    packages.mkdir()
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if "perfguard" not in package.name:
            (packages / package.name).symlink_to(package)
    suites = checkout / "tests" / "kernels"
    (suites / "test_tiny_guarded.py").rename(suites / f"test_{'moe' if found else 'other'}_guarded.py")
    (checkout / "pyproject.toml").write_text(SETTINGS)
    program = ["-m", "benchmarks.all_gpus", "--device", "fake", "--checkout", str(checkout), "--only", "moe"]
    done = subprocess.run(
        [str(Path(sys.base_prefix, "bin", "python3")), *program, "--out", str(tmp_path / "out")],
        cwd=files, env={**os.environ, "PYTHONPATH": str(packages)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    kept = [path.name for path in (tmp_path / "out").glob("baselines/*/*.yaml")]
    ended = ["found ended with status 0", "moe ended with status 0"]
    if found:
        assert [line.partition(": ")[2] for line in done.stdout.splitlines()] == ended, done.stdout + done.stderr
        assert kept == ["kernels.moe_guarded.yaml"]
    else:
        assert "file or directory not found: tests/kernels/test_moe_guarded.py" in done.stdout
        assert (done.returncode, kept) == (1, [])


@pytest.mark.nightly
def test_pairs_of_delays(run_pairs: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Delays are tuned, planted and found, as slow as they are."""
    monkeypatch.setattr(pairs, "DELAYS", ((30,), (0, 10)))
    monkeypatch.setattr(pairs, "_PROJECT", f"{pairs._PROJECT}case_seconds = 0.05\ntargets = []\n")
    found = run_pairs("--only", "delays")["delays"]
    rows = {row["case"]: row for row in found["rows"] if row["metric"] == "device_time_us"}
    for delay in found["plan"]:
        row = rows[f"delayed[{delay['name']}]/forward"]
        assert row["effect"] == pytest.approx(delay["slower"], abs=0.01)
    assert words(found) == ["PASS", "SLOWER"]
    assert "| delays 10 % | device_time_us | 1 SLOWER |" in capsys.readouterr().out


def test_a_chain_ends_where_it_should() -> None:
    """What the delayed kernel computes, link by link, equals the one product that it is compared with. (It has hundreds
    of links; some 20 are rounded differently.)"""
    import torch

    from benchmarks.pairs.delayed import expected, numbers

    x = numbers(torch.device("cpu"))
    half = 0.5 * x
    y = half
    for links in range(1, 100):
        y = 0.5 * y + half
        assert links < 30 or torch.equal(y, expected(x, links))


@pytest.mark.nightly
def test_pairs_of_power(run_pairs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same kernel of other values: its time is judged, as it is what a user waits for."""
    monkeypatch.setattr(pairs, "POWER", (0, 100))
    monkeypatch.setattr(pairs, "_PROJECT", f"{pairs._PROJECT}case_seconds = 0.05\ntargets = []\n")
    found = run_pairs("--only", "power")["power"]
    rows = {row["case"]: row["word"] for row in found["rows"] if row["metric"] == "device_time_us"}
    assert rows == {"powered[0pct]/forward": "PASS", "powered[100pct]/forward": "SLOWER"}


@pytest.mark.nightly
def test_pipelines_over_two_processes(tmp_path: Path) -> None:
    out = tmp_path / "pipelines.json"
    subprocess.run([sys.executable, "-m", "benchmarks.pipelines", "-o", str(out)], cwd=ROOT, check=True)
    rows = json.loads(out.read_text())["rows"]
    assert [(row["pp"], row["ep"]) for row in rows] == [(2, 1)] * 3 + [(1, 2)] * 3
    for row in rows:
        closed = 2 * row["pp"] + row["schedule"].startswith("DualPipeV")
        for rank in row["ranks"]:
            assert rank["live"] == closed
            assert (rank["turns"] > 0) is row["schedule"].endswith("in turn")


def test_what_is_planted_still_finds_its_lines(tmp_path: Path) -> None:
    from benchmarks.fleet import PLANTS

    shutil.copytree(ROOT / "kernels", tmp_path / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    for edits in (*PLANTS.values(), *((family.edit,) for family in FAMILIES.values())):
        with planted_in(tmp_path, *edits):
            for edit in edits:
                ast.parse((tmp_path / edit.file).read_text())
    assert all((ROOT / pairs.file_of(family.suite)).is_file() for family in FAMILIES.values())
