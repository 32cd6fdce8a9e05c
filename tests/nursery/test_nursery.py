"""A nursery's process is what was asked for: nothing of it tells, but that torch is there already."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.nursery import Nursery

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="a nursery needs Linux")

# What a process is, as it sees itself.
FACTS = """
import os, sys
print(sys.argv, os.getcwd(), sys.path[0], os.environ.get("GIVEN"), sys.stdin.read(), __name__, file=sys.stderr)
print(sys.dont_write_bytecode, os.getppid())
print(sorted(file for file in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{file}")))
"""
FORKED = "import sys; sys.exit('torch' in sys.modules)"


def run(python: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, *arguments], capture_output=True, text=True, check=False, timeout=60, **options)


@pytest.mark.parametrize("flags", [[], ["-P", "-B"]])
def test_it_sees_what_pythons_own_would(nursery: Nursery, tmp_path: Path, flags: list[str]) -> None:
    (tmp_path / "facts.py").write_text(FACTS)
    with (tmp_path / "open.txt").open("w") as file:
        options = {
            "cwd": tmp_path,
            "env": os.environ | {"GIVEN": "x y", "PYTHONPATH": str(tmp_path)},
            "input": "written",
            "pass_fds": [file.fileno()],
        }
        for arguments in (["-m", "facts", "a b", "-c"], ["-c", FACTS, "-m", "é"], ["-mfacts"]):
            forked, own = (run(python, *flags, *arguments, **options) for python in (nursery.python, sys.executable))
            assert own.returncode == 0, own.stderr
            assert (forked.stdout, forked.stderr, forked.returncode) == (own.stdout, own.stderr, own.returncode)


def test_torch_is_there_and_nothing_of_ours(nursery: Nursery) -> None:
    code = "import sys; print('torch' in sys.modules, [name for name in sys.modules if name.startswith('tests')])"
    assert run(nursery.python, "-c", code).stdout == "True []\n"


def test_its_own_processes_are_forked_too(nursery: Nursery) -> None:
    code = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {FORKED!r}]))"
    assert run(nursery.python, "-c", code).returncode == 1


def test_runs_of_pytest_interpret_as_the_run_that_starts_them_and_other_processes_do_not(interpreting: Nursery) -> None:
    told = "import triton.language.standard as it; print(type(it.cdiv).__name__)"
    code = f"""import subprocess, sys
for each in ({told + "  # run_pytest()"!r}, {told!r}):
    subprocess.run([sys.executable, "-c", each])
"""
    runs = "JITFunction" if torch.cuda.is_available() else "InterpretedFunction"
    assert run(interpreting.python, "-c", code).stdout.split() == [runs, "JITFunction"]


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["-W", "ignore", "-c", FORKED], {}),
        (["-c", FORKED], {"PYTHONHASHSEED": "7"}),
        (["-c", FORKED], {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}),
    ],
)
def test_what_it_cannot_be_is_python(nursery: Nursery, arguments: list[str], environment: dict[str, str]) -> None:
    assert run(nursery.python, *arguments, env=os.environ | environment).returncode == 0


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("raise SystemExit(7)", 7, ""),
        ("raise SystemExit('no reason')", 1, "no reason\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("import os; os._exit(3)", 3, ""),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
        ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM, ""),
        ("import atexit, sys; atexit.register(print, 'bye', file=sys.stderr)", 0, "bye\n"),
    ],
)
def test_it_ends_as_pythons_own_would(nursery: Nursery, code: str, status: int, said: str) -> None:
    done = run(nursery.python, "-c", code)
    assert done.returncode == status
    assert done.stderr.endswith(said)
    assert bool(done.stderr) is bool(said)


def asleep(nursery: Nursery) -> tuple[subprocess.Popen[str], list[int]]:
    """A process that sleeps, and the numbers of itself and of a child."""
    code = (
        "import os, subprocess, time; child = subprocess.Popen(['sleep', '600']); "
        "print(os.getpid(), child.pid, flush=True); time.sleep(600)"
    )
    process = subprocess.Popen(
        [nursery.python, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    )  # fmt: skip
    assert process.stdout is not None
    return process, [int(word) for word in process.stdout.readline().split()]


def runs(number: int) -> bool:
    """Whether a process has this number, and has not ended: where nobody waits for orphans, they stay as zombies."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_whoever_ends_the_stand_in_ends_all(nursery: Nursery, number: signal.Signals) -> None:
    process, numbers = asleep(nursery)
    with process:
        assert [runs(each) for each in numbers] == [True, True]
        process.send_signal(number)
        assert process.wait(20) == -number
    deadline = time.monotonic() + 20
    while any(runs(each) for each in numbers):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_signal_is_handled_where_it_is_meant_to_be(nursery: Nursery) -> None:
    code = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); "
        "print('ready', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([nursery.python, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.wait(20) == 5


def test_a_signal_is_heard_at_any_moment(nursery: Nursery) -> None:
    """Also before the stand-in has asked for its process: what it passes on is not to be taken for a request."""
    with contextlib.ExitStack() as stack:
        # Looking through many open files takes the stand-in a while.
        files = [stack.enter_context(open(os.devnull)).fileno() for _ in range(200)]
        for moment in range(60):
            line = [nursery.python, "-c", "import time; time.sleep(600)"]
            with subprocess.Popen(line, stderr=subprocess.DEVNULL, pass_fds=files) as process:
                time.sleep(moment * 0.0005)
                process.terminate()
                assert process.wait(20) == -signal.SIGTERM
    assert run(nursery.python, "-c", FORKED).returncode == 1


def test_what_it_runs_ends_with_it() -> None:
    own = Nursery(modules=("torch", "perfguard"))  # the least: what is imported does not matter to how it ends
    process, numbers = asleep(own)
    own.close()
    with process:
        assert process.wait(20) != 0
    assert not own.folder.exists()
    deadline = time.monotonic() + 20
    while any(runs(each) for each in numbers):
        assert time.monotonic() < deadline
        time.sleep(0.01)
