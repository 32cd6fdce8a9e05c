"""What a guarded run leaves behind in the process of its user: nothing."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from perfguard import ExitStatus
from tests.flows.conftest import TEST, Project

CONFTEST = """
import faulthandler, gc, json, os, threading

def state():
    mask = next(line for line in open("/proc/self/status") if line.startswith("Umask"))
    return {"frozen": gc.get_freeze_count() > 0, "umask": mask, "environment": dict(os.environ), "folder": os.getcwd(),
            "threads": threading.active_count()}

BEFORE = state()
STACK = open("stack.txt", "w")
faulthandler.dump_traceback_later(0.5, file=STACK)  # the user's own, for the whole run

def pytest_unconfigure(config):
    import atexit
    after = state()
    for each in (BEFORE, after):
        each["environment"].pop("PYTEST_CURRENT_TEST", None)
    moved = {name: (BEFORE[name], after[name]) for name in BEFORE if BEFORE[name] != after[name]}
    atexit.register(lambda: json.dump(moved, open("moved.json", "w")))
"""


def test_nothing_of_the_user_s_process_is_changed(project: Project) -> None:
    (project.path / "conftest.py").write_text(CONFTEST)
    late = "\n\ndef test_late():\n    import time\n    time.sleep(0.6)\n"
    project.test_file(TEST + late)
    for plugin in ("faulthandler", "terminal"):
        assert project.run("--perfguard", "-p", f"no:{plugin}").ret == ExitStatus.PASSED
    assert (project.path / "moved.json").read_text() == "{}"
    assert "Timeout" in (project.path / "stack.txt").read_text()  # nobody cancelled the user's timer


@pytest.mark.parametrize("workers", [(), ("-n1",)])
def test_commands_of_a_run_in_a_subfolder_are_typed_there(
    recorded: Project, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...]
) -> None:
    """In the summary, and in the failing test's own words."""
    here = recorded.path / "tests"
    here.mkdir()
    (recorded.path / "test_suite.py").rename(here / "test_suite.py")
    recorded.kernel(factor=3)
    recorded.configure(device="fake*1")
    monkeypatch.chdir(here)
    result = recorded.guard("-v", "test_suite.py", *workers)
    assert result.ret == ExitStatus.WRONG
    said = {line.strip(" E") for line in result.outlines if "reproduce: " in line}
    assert said == {f"reproduce: pytest --perfguard 'test_suite.py::test_double[{size}]'" for size in (64, 96)}
    for command in said:
        assert recorded.run(*shlex.split(command)[2:]).ret == ExitStatus.WRONG


def test_a_worker_of_xdist_stays_one(project: Project) -> None:
    seen = (
        "\n\nimport atexit, os\natexit.register(lambda: open('seen.txt', 'w').write(os.environ['PYTEST_XDIST_WORKER']))"
    )
    project.test_file(TEST + seen)
    project.configure(device="fake*1")
    assert project.guard("-n1", "--perfguard-update=new").ret == ExitStatus.PASSED
    assert Path(project.path, "seen.txt").read_text() == "gw0"


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        (".perfguard", (), "/.perfguard: cannot be a folder (File exists); move what stands in its way"),
        (".perfguard", ("-n1",), "/.perfguard: cannot be a folder (File exists); move what stands in its way"),
        ("baselines", (), "a file, expected a folder; move it away"),
    ],
)
def test_a_file_where_a_folder_was_is_one_clear_error(
    project: Project, name: str, arguments: tuple[str, ...], said: str
) -> None:
    project.configure(device="fake*1" if arguments else "fake")
    (project.path / name).write_text("")
    result = project.guard(*arguments)
    assert result.ret == ExitStatus.USAGE_ERROR
    assert said in result.stdout.str() + result.stderr.str()
    assert "Traceback" not in result.stdout.str() + result.stderr.str()
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()


def test_a_run_that_outgrows_its_pull_request_says_so_before_it_measures(project: Project) -> None:
    small = "\n\nfrom perfguard.store import comment_limits\ncomment_limits.LEAST_CASES = 3"
    project.test_file(TEST + small)
    said = "perfguard: warning: 2 tests are up to 4 cases, of which perfguard comment reads 3 in a lane"
    assert said not in project.guard().stdout.str()  # It guards no pull requests.
    project.configure(lanes=["fake-gpu"])
    text = project.guard().stdout.str()
    assert text.index(said) < text.index("\ntest_suite.py ")
