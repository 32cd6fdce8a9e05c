"""`perfguard compare` in a git repository: base against working tree in live processes, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.checkouts import import_path
from perfguard import ExitStatus
from tests.flows.conftest import TEST, Project


class Checkout:
    """The project as a git repository with one commit on `main`."""

    def __init__(self, project: Project, temporary: Path) -> None:
        self.project = project
        self.path = project.path
        self.temporary = temporary  # where worktrees and locks are made
        self.environment = os.environ | {"TMPDIR": str(temporary)}
        project.configure()
        (self.path / ".gitignore").write_text("__pycache__/\n.perfguard/\n*.pyc\n")
        self.git = project.git
        self.git("init", "-q", "-b", "main")
        self.commit()

    def commit(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "base")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "perfguard", "compare", *arguments], cwd=self.path, env=self.environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def compare(self, *arguments: str) -> tuple[int, str]:
        """Exit status, and output and errors together; nothing may be left behind."""
        with self.start(*arguments) as process:
            output, errors = process.communicate(timeout=300)
        assert self.leftovers() == []
        return process.returncode, output + errors

    def leftovers(self) -> list[str]:
        found = [str(path) for path in self.temporary.glob("perfguard-pairs-*")]
        found += [line for line in self.git("worktree", "list").splitlines() if str(self.path) not in line]
        found += [str(path) for path in (self.temporary / "perfguard-locks").glob("*.txt")]  # who holds a lock
        return found

    def verdicts(self) -> dict[tuple[str, str], dict[str, Any]]:
        """(case, metric) -> what the report says."""
        results = json.loads(next(self.path.glob(".perfguard/compare/report-*.json")).read_text())["results"]
        return {
            (f"{each['case']['name']}/{each['case'].get('direction', 'forward')}", verdict.get("metric", "")): verdict
            for each in results
            for verdict in each["verdicts"]
        }


@pytest.fixture
def checkout(project: Project, tmp_path: Path) -> Checkout:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    return Checkout(project, temporary)


def test_ten_percent_and_a_launch_more_are_told_with_their_case(checkout: Checkout) -> None:
    """By the base alone: records that say otherwise are not looked at, and stay."""
    checkout.project.guard("--perfguard-update", "--perfguard-dirty")
    checkout.commit()
    assert checkout.git("ls-files", "-s", "baselines")
    checkout.project.kernel(us=55.0, launches=3)
    checkout.project.test_file(TEST.replace("[64, 96]", "[64, 128]"))
    before = checkout.git("status", "--porcelain"), checkout.git("ls-files", "-s")
    status, said = checkout.compare("main", "--", "test_suite.py")
    assert status == ExitStatus.REGRESSED, said
    assert "process pair 1: 2 times in question" in said
    verdicts = checkout.verdicts()
    slower = verdicts["double[64]/forward", "device_time_us"]
    assert slower["word"] == "SLOWER"
    assert 1.08 < slower["ratio"] < 1.12
    assert "because: " in slower["reason"]
    assert "launches 1 -> 3 (+200.0 %)" in slower["reason"]
    changed = verdicts["double[64]/forward", "launches"]
    assert (changed["word"], changed["before"], changed["after"]) == ("CHANGED", 1, 3)
    assert verdicts["double[128]/forward", "device_time_us"]["word"] == "NEW"
    assert (checkout.git("status", "--porcelain"), checkout.git("ls-files", "-s")) == before


def test_a_base_that_lacks_every_test_is_no_problem(checkout: Checkout) -> None:
    checkout.project.test_file(TEST.replace("[64, 96]", "[64, 128]"))
    status, said = checkout.compare("main", "--", "-k", "128")
    assert status == ExitStatus.PASSED, said
    assert "1 NEW" in said
    assert "NEW  1 case (double[128]/forward): the base has no such case\n" in said
    assert "ended with status" not in said


def test_baselines_of_a_project_inside_of_the_repository_are_no_code(checkout: Checkout) -> None:
    """A monorepo: the settings, and so the baselines, are the inner project's."""
    inner = checkout.path / "package"
    (inner / "baselines").mkdir(parents=True)
    (checkout.path / "pyproject.toml").rename(inner / "pyproject.toml")
    checkout.commit()
    (inner / "baselines" / "a.yaml").write_text("new\n")
    line = [sys.executable, "-m", "perfguard", "compare", "main"]
    done = subprocess.run(line, cwd=inner, env=checkout.environment, capture_output=True, text=True, check=False)
    assert done.returncode == ExitStatus.PASSED, done.stderr
    assert "UNCHANGED: the working tree is" in done.stdout


def test_an_unchanged_tree_is_unchanged_at_once(checkout: Checkout) -> None:
    (checkout.path / "README.md").write_text("What this is.\n")
    status, said = checkout.compare("main")
    assert status == ExitStatus.PASSED, said
    assert said.startswith("UNCHANGED: the working tree is ")
    assert "process pair" not in said


def test_ctrl_c_leaves_a_report_and_nothing_else(checkout: Checkout) -> None:
    checkout.project.kernel(us=62.5)
    with checkout.start("main") as process:
        while not list(checkout.temporary.glob("perfguard-pairs-*/pair-2")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=60)
    assert process.returncode == ExitStatus.INTERRUPTED, errors
    assert "2 UNRESOLVED; 2 cases asked" in said
    assert checkout.verdicts()["double[64]/forward", "device_time_us"]["word"] == "UNRESOLVED"
    assert checkout.leftovers() == []


def test_a_wrong_working_tree_is_wrong(checkout: Checkout) -> None:
    checkout.project.kernel(factor=2.5)
    status, said = checkout.compare("main", "--", "-k", "64")
    assert status == ExitStatus.WRONG, said
    assert "WRONG" in said


@pytest.mark.nightly  # starts Python itself, six times; a foreign path, below, is found alike
@pytest.mark.usefixtures("real_processes")
def test_perfguard_itself_can_be_compared(checkout: Checkout) -> None:
    """A folder `perfguard` in the repository, found before all others, is code under test and not the tool."""
    (checkout.path / "perfguard").mkdir()
    (checkout.path / "perfguard" / "__init__.py").write_text("raise ImportError('not the tool')\n")
    # Nothing to time, so that one pair of processes is enough.
    checkout.project.test_file(TEST.replace("[64, 96]", "[64]").replace(", work=", ", timed=False, work="))
    checkout.commit()
    (checkout.path / "kernel.py").write_text((checkout.path / "kernel.py").read_text() + "# a comment\n")
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "perfguard", "compare", "main"], cwd=checkout.path, env=checkout.environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        said, _ = process.communicate(timeout=300)
    assert process.returncode == ExitStatus.PASSED, said
    assert "1 of 1 case guarded" in said


def workers_of(folder: Path) -> list[int]:
    """Processes whose command line names `folder`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes()
        except OSError:
            continue
        if b"--perfguard-session=" + os.fsencode(folder) in arguments:
            found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere: no branch, tag or commit"),
        (["main", "--", "test_suite.py", "--perfguard-device=abacus"], "device 'abacus': unknown"),
        (["main", "--", "-n", "2"], "one process runs the tests; add -n0 behind --"),
        (["--setup", "echo first; exit 3", "main"], "ended with status 3 in the worktree of the base"),
    ],
)
def test_bad_input_is_one_clear_error(checkout: Checkout, arguments: list[str], said: str) -> None:
    checkout.project.kernel(us=60.0)
    status, output = checkout.compare(*arguments)
    assert status == ExitStatus.USAGE_ERROR
    assert said in output
    assert "Traceback" not in output


def test_no_guarded_test_is_nothing_measured(checkout: Checkout) -> None:
    checkout.project.test_file("def test_nothing():\n    pass\n")
    checkout.commit()
    checkout.project.kernel(us=60.0)
    status, said = checkout.compare("main")
    assert status == ExitStatus.NOTHING_MEASURED, said


@pytest.mark.usefixtures("real_processes")  # those of a nursery have imported pytest's plugins already
def test_warnings_may_be_errors_where_perfguard_is_installed(checkout: Checkout, tmp_path: Path) -> None:
    """pytest warns of plugins that were imported before it, and the command is of one."""
    installed = tmp_path / "installed" / "guard-1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: guard\nVersion: 1\n")
    (installed / "entry_points.txt").write_text("[pytest11]\nguard = textwrap\n")
    (installed / "RECORD").write_text("perfguard/__init__.py,,\n")
    checkout.environment["PYTHONPATH"] = import_path(installed.parent)
    (checkout.path / "pytest.ini").write_text("[pytest]\npythonpath = .\nfilterwarnings = error\n")
    checkout.project.test_file("def test_nothing():\n    pass\n")
    checkout.commit()
    checkout.project.kernel(us=60.0)
    status, said = checkout.compare("main")
    assert status == ExitStatus.NOTHING_MEASURED, said
    assert "rewritten" not in said


def test_code_from_the_user_s_checkout_is_refused(checkout: Checkout) -> None:
    """As after `pip install -e`: the path of the checkout comes before all others."""
    source = f"import sys\nsys.path.insert(0, {str(checkout.path)!r})\nimport kernel\n"
    (checkout.path / "conftest.py").write_text(source)
    checkout.commit()
    checkout.project.kernel(us=60.0)
    status, said = checkout.compare("main")
    assert status == ExitStatus.USAGE_ERROR, said
    assert f"kernel ({checkout.path}/kernel.py): loaded by the worker of the base" in said
