"""How a child is started and asked: its command, with a worktree or without, its request, and its answer."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

import perfguard
from perfguard.model.errors import UsageError
from perfguard.model.records import SCHEMA, Hardware, Report, Toolchain
from perfguard.session.child import (
    ANSWER,
    REQUEST,
    ChildCommand,
    Cold,
    PairOptions,
    Request,
    Worktree,
    child_command,
    own_packages,
    read_answer,
    read_request,
    timers_of,
    write_request,
)
from perfguard.store.report_file import save_report
from tests.store.test_report_file import CASE, REPORT

GIVEN = ("tests/test_a.py", "-k", "a or b", "-x", "-n4", "-c", "other.ini", "--junitxml=out.xml", "--model=large")


@pytest.fixture
def worktree(tmp_path: Path) -> Worktree:
    found = Worktree(tmp_path / "temporary" / "base", tmp_path / "repository")
    for root in (found.folder, found.original):
        (root / "tests").mkdir(parents=True)
    return found


def test_a_child_is_given_what_pytest_was_given(tmp_path: Path) -> None:
    command = child_command(GIVEN, tmp_path, "fake")
    own = ["--perfguard-device=fake", "--color=no", "--perfguard-session=folder"]
    assert command.line(Path("folder")) == [sys.executable, "-m", "pytest", *GIVEN, *own]
    assert command.start == tmp_path


@pytest.mark.parametrize("found", [True, False])
def test_perfguard_on_pythonpath_alone_is_named_to_pytest(
    worktree: Worktree, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands such as `perfguard explain` have no `-p perfguard.plugin` to hand on."""
    points = [SimpleNamespace(value="perfguard.plugin")] * found
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
    own_packages.cache_clear()
    line = ChildCommand(GIVEN, worktree.original, worktree).line(Path("/folder"))
    own_packages.cache_clear()
    assert (line[4:6] == ["-p", "perfguard.plugin"]) is not found


def test_in_a_worktree_too(worktree: Worktree) -> None:
    command = ChildCommand(GIVEN, worktree.original / "tests", worktree)
    line = command.line(Path("/folder"))
    assert line[:3] == [sys.executable, "-P", "-c"]
    assert tuple(line[4 : 4 + len(GIVEN)]) == GIVEN
    assert line[-1] == "--perfguard-session=/folder"
    assert command.start == worktree.folder / "tests"


def test_its_process_ends_with_pytest_s_status_after_whatever_was_registered(
    worktree: Worktree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the interpreter is not finalized: a user's exit functions, threads and output are all there."""
    test = """
        import atexit, threading
        class Held:
            def __del__(self): print("finalized")
        held = Held()
        def late():
            threading.main_thread().join()
            print("thread")
        def test_fails():
            atexit.register(print, "exit function", end="")
            threading.Thread(target=late).start()
            assert False
    """
    (worktree.folder / "tests" / "test_a.py").write_text(textwrap.dedent(test))
    command = ChildCommand(("-s", "-p", "no:cacheprovider"), worktree.original / "tests", worktree)
    line = command.line(Path("unused"))[:-1]  # no request: a plain run
    ran = subprocess.run(line, cwd=command.start, env=command.environment(), capture_output=True, text=True)
    assert ran.returncode == 1
    assert ran.stdout.endswith("thread\nexit function")


def test_files_of_arguments_are_read(tmp_path: Path) -> None:
    (tmp_path / "args.txt").write_text("--perfguard-device=fake\n-k\na or b\n@more.txt\n")
    (tmp_path / "more.txt").write_text("tests\n")
    given = ["@args.txt", "-x", "@gone.txt"]
    expanded = ("--perfguard-device=fake", "-k", "a or b", "tests", "-x", "@gone.txt")
    assert child_command(given, tmp_path, "cpu").arguments == (*expanded, "--perfguard-device=cpu")


def test_paths_in_the_user_s_checkout_move_to_the_worktree(worktree: Worktree) -> None:
    root, folder = worktree.original, worktree.folder
    for text, moved in [
        (f"{root}/tests/test_a.py::test_b", f"{folder}/tests/test_a.py::test_b"),
        (f"--rootdir={root}", f"--rootdir={folder}"),
        (f"{root}-other/tests", f"{root}-other/tests"),
        ("tests", "tests"),
        ("-k=tests", "-k=tests"),
    ]:
        assert worktree.moved(text) == moved


def test_each_side_finds_its_own_code_and_everybody_the_same_perfguard(
    worktree: Worktree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the repository is perfguard itself, so that its folder lies in every worktree."""
    (worktree.folder / "src").mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(worktree.original / "python"), "/elsewhere", ""]))
    only, *paths = ChildCommand((), worktree.original, worktree).environment()["PYTHONPATH"].split(os.pathsep)
    assert paths == [f"{worktree.folder}{end}" for end in ("", "/src", "/python")] + ["/elsewhere"]
    assert (Path(only) / "perfguard").resolve() == Path(perfguard.__file__).parent.resolve()
    assert os.listdir(only) == ["perfguard"]
    other = Worktree(worktree.folder.with_name("work"), worktree.original)
    assert other.python_path().split(os.pathsep)[:2] == [only, str(other.folder)]


def test_no_child_is_a_worker_of_xdist_or_bound_to_a_hook_s_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST", "GIT_DIR", "GIT_AUTHOR_NAME")
    for name in names:
        monkeypatch.setenv(name, "x")
    found = ChildCommand((), Path()).environment()
    assert [name for name in names if name in found] == ["GIT_AUTHOR_NAME"]


def test_a_request_arrives_as_it_was_written_with_the_timers_of_what_was_read(tmp_path: Path) -> None:
    request = Request(
        "gpu",
        timers_of(REPORT.results),
        ["test_a.py::test_b[c d]"],
        exact=False,
        cold=Cold("suite", "f[64]", 1.5, 4),
        pair=PairOptions(7, 512),
    )
    write_request(tmp_path, request)
    assert read_request(tmp_path) == msgspec.structs.replace(request, parent=os.getpid())
    assert request.timers_for(CASE) == {"device_time_us": "queue-cold"}
    assert request.timers_for(msgspec.structs.replace(CASE, name="other")) == {}


@pytest.mark.parametrize("content", [None, b"[]"])
def test_without_a_request_there_is_nothing_to_measure(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / REQUEST).write_bytes(content)
    with pytest.raises(UsageError, match=r"^--perfguard-session=.*: no request of perfguard .*; leave it out$"):
        read_request(tmp_path)


@pytest.mark.parametrize("asked", ["", "cpu-a"])
def test_an_answer_is_of_the_device_that_was_asked_for(tmp_path: Path, asked: str) -> None:
    assert read_answer(tmp_path, asked) is None
    hardware = Hardware(slug="cpu-b", vendor="cpu", name="", architecture="")
    save_report(tmp_path / ANSWER, Report(SCHEMA, hardware, Toolchain(), "2026-01-01T00:00:00+00:00"))
    if asked:
        with pytest.raises(UsageError, match=r"^measured cpu-b, this run cpu-a; name the device: --perfguard-device$"):
            read_answer(tmp_path, asked)
    else:
        assert read_answer(tmp_path, asked) is not None
