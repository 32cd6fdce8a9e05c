"""The cache, and compiling processes that hang, die, print, or fail by no fault of the kernel."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch

from perfguard.measure.binaries import compiler as compiling
from perfguard.measure.binaries.compiler import Compiler, Job, binaries_of, facts_of, first_irs
from perfguard.measure.binaries.kernel_facts import Built, Facts
from perfguard.measure.binaries.launch_recorder import UNKNOWN, Launch
from perfguard.measure.binaries.targets import Target
from tests.measure.metrics.binaries import SCALE, Reader

# Answers as the worker does, after what its argument asks for.
PROGRAM = """
import json, os, sys, time
print(json.dumps("triton 3.9.0"), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    behaviour = json.loads(request["launch"]["data"])["behaviour"]
    if behaviour == "hang":
        time.sleep(600)
    if behaviour.startswith("wait for "):
        open(behaviour[9:] + " started", "w").close()
    while behaviour.startswith("wait for ") and not os.path.exists(behaviour[9:]):
        time.sleep(0.01)
    if behaviour == "die":
        print("LLVM ERROR: out of ideas", file=sys.stderr, flush=True)
        os.abort()
    if behaviour == "killed":
        os.kill(os.getpid(), 9)
    code = {"code": "AAAA"} if behaviour.startswith("code") else {}
    if request["wanted"] == "ir":
        print(json.dumps({"digest": request["target"], "of_target": behaviour == "asking"}), flush=True)
    else:
        print(json.dumps({"facts": {"binary": behaviour, "registers": 7}, **code}), flush=True)
"""


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    popen = subprocess.Popen

    def start(line: list[str], **options: object) -> object:
        return popen([sys.executable, "-c", PROGRAM], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(compiling.subprocess, "Popen", start)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__="3.9.0"))  # type: ignore[arg-type]
    return Compiler(tmp_path / "cache", seconds=20.0)


def job(compiler: Compiler, behaviour: str, target: str = "sm_90") -> Job:
    data = msgspec.json.decode(UNKNOWN) | {"behaviour": behaviour}
    return Job(
        compiler, target, Launch("module", "module.py", "kernel", msgspec.json.encode(data).decode(), source=behaviour)
    )


def facts(compiler: Compiler, behaviour: str, target: str = "sm_90") -> Facts:
    (found,) = facts_of([job(compiler, behaviour, target)]).values()
    return found


def test_what_is_known_is_not_compiled_again_on_either_side(compiler: Compiler) -> None:
    first = [facts(compiler, "a", target) for target in ("sm_90", "gfx942")]
    assert {each.registers for each in first} == {7}
    other_side = Compiler(compiler.folder, path=[])
    assert [facts(other_side, "a", target) for target in ("sm_90", "gfx942")] == first
    both = Compiler(compiler.folder), Compiler(compiler.folder)
    first_one, second_one = facts_of([job(each, "b") for each in both]).values()
    assert first_one == second_one
    assert [each.compiled for each in (compiler, other_side, *both)] == [2, 0, 1, 0]


def test_another_triton_is_another_compiler(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    facts(compiler, "a")
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__="3.10.0"))  # type: ignore[arg-type]
    later = Compiler(compiler.folder)
    facts(later, "a")
    assert later.compiled == 1
    assert later.toolchain == "triton 3.10.0"
    assert Compiler(compiler.folder, python="another").toolchain == "triton 3.9.0"  # as its process says


def test_a_first_ir_is_made_once_for_all_targets_unless_the_kernel_asks(compiler: Compiler) -> None:
    for behaviour, digests in (("plain", {"sm_80"}), ("asking", {"sm_80", "sm_90"})):
        found = first_irs([job(compiler, behaviour, target) for target in ("sm_80", "sm_90")])
        assert {each.digest for each in found.values()} == digests


def test_a_compiler_that_gives_up_a_kernel_is_quoted_and_not_remembered(compiler: Compiler) -> None:
    found = facts(compiler, "die")
    assert found.error == "does not compile: the compiler ended with status -6: LLVM ERROR: out of ideas"
    assert not found.passing
    assert not list(compiler.folder.glob("*"))


def test_a_compiler_that_is_killed_or_late_is_no_fact_of_the_kernel(compiler: Compiler) -> None:
    killed = facts(compiler, "killed")
    assert killed.error == "could not be compiled here: the compiler ended with status -9: "
    compiler.seconds = 0.5
    late = facts(compiler, "hang")
    assert late.error == "could not be compiled here: the compiler took longer than 0.5 s"
    assert killed.passing
    assert late.passing
    assert not list(compiler.folder.glob("*"))
    assert facts(compiler, "a").registers == 7


def test_the_disassembler_is_started_once_and_what_it_cannot_read_is_tried_alone(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def disassembled(target: Target, built: Sequence[Built]) -> list[Facts]:
        asked.append([each.facts.binary for each in built])
        if "code bad" in asked[-1]:
            raise subprocess.CalledProcessError(1, "nvdisasm")
        return [msgspec.structs.replace(each.facts, instructions=5) for each in built]

    monkeypatch.setattr(compiling, "disassembled", disassembled)
    wanted = [job(compiler, behaviour) for behaviour in ("code a", "code b", "plain")]
    assert [each.registers for each in binaries_of(wanted).values()] == [7, 7, 7]
    assert asked == []
    assert [each.instructions for each in facts_of(wanted).values()] == [5, 5, 0]
    assert asked == [["code a", "code b"]]
    assert [each.instructions for each in facts_of(wanted).values()] == [5, 5, 0]
    assert len(asked) == 1

    good, bad = facts_of([job(compiler, behaviour) for behaviour in ("code c", "code bad")]).values()
    assert asked[1:] == [["code c", "code bad"], ["code c"], ["code bad"]]
    assert good.instructions == 5
    assert (bad.error, bad.passing) == ("cannot be disassembled here: CalledProcessError", True)


def test_a_damaged_cache_is_made_anew(compiler: Compiler) -> None:
    first = facts(compiler, "a")
    (file,) = compiler.folder.glob("*.json")
    file.write_bytes(b'{"facts": ')
    assert facts(Compiler(compiler.folder), "a") == first


def test_a_kernel_that_another_process_compiles_meanwhile_is_taken_from_the_cache(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as background:
        monkeypatch.setattr(compiling, "_pool", lambda: one)
        late = job(compiler, "b")
        found = background.submit(facts_of, [job(compiler, f"wait for {tmp_path / 'file'}"), late])
        wait_for((tmp_path / "file started").exists)
        Compiler(compiler.folder).keep(late.key("binary", late.target, late.launch.data), Built(Facts(registers=9)))
        (tmp_path / "file").touch()
        assert found.result()[late].registers == 9
    assert compiler.compiled == 1


# -- the worker itself -------------------------------------------------------------------------------------------------

ASKS_AT_IMPORT = """
import torch
import triton

# As fla does (utils/hardware.py).
try:
    BACKEND = triton.runtime.driver.active.get_current_target().backend
except Exception:
    BACKEND = "cpu"
NAME = torch.cuda.get_device_name(0) if BACKEND == "cuda" else ""
"""
X = torch.ones(64, 128)


def made(reader: Reader, source: str) -> Facts:
    (found,) = reader.follow(reader.call(source, X))
    (launch,) = found.recording.launches
    (facts,) = facts_of([Job(reader.compiler, "sm_90", launch)]).values()
    return facts


@pytest.mark.skipif(torch.cuda.is_available(), reason="there the import sees a GPU")
def test_a_module_that_asks_the_driver_at_its_import_sees_what_it_sees_in_the_users_process(reader: Reader) -> None:
    """After another kernel was compiled by the same process, too: the driver is put back."""
    for number in range(2):
        assert made(reader, SCALE.replace("x * factor", f"x * factor - {number}.25")).error == ""
        assert made(reader, ASKS_AT_IMPORT + SCALE.replace("x * factor", f"x * factor + {number}.25")).error == ""


FAULTS_OF_THE_MACHINE = {
    "an import": ("import os\nif 'TRITON_ALWAYS_COMPILE' in os.environ:\n    raise ValueError('out of order')\n", "x"),
    "a device": (
        "import torch, triton\n\n\n@triton.constexpr_function\ndef chip():\n"
        "    return getattr(torch.cuda, 'get_device_name')(0)\n",
        "x * (2.0 if chip() == 'H100' else 3.0)",
    ),
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there the device is")
@pytest.mark.parametrize("name", FAULTS_OF_THE_MACHINE)
def test_a_fault_of_the_machine_is_no_fact(reader: Reader, name: str) -> None:
    head, value = FAULTS_OF_THE_MACHINE[name]
    kept = set(reader.compiler.folder.glob("*"))
    found = made(reader, head + SCALE.replace("x * factor", value))
    assert found.passing
    assert found.error.startswith("could not be compiled here: ")
    assert set(reader.compiler.folder.glob("*")) == kept


RUN = """
import sys
from pathlib import Path
from perfguard.measure.binaries.compiler import Compiler, Job, binaries_of
from perfguard.measure.binaries.launch_recorder import UNKNOWN, Launch
launch = Launch("sleeper", sys.argv[1], "kernel", UNKNOWN, source="0")
binaries_of([Job(Compiler(Path(sys.argv[1]).parent / "cache"), "sm_90", launch)])
"""


def is_alive(process: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_a_compiling_process_ends_with_the_run(tmp_path: Path, ending: signal.Signals) -> None:
    """At work, when it reads no pipe. An import that sleeps stands for a compilation."""
    pytest.importorskip("triton")
    sleeper, told = tmp_path / "sleeper.py", tmp_path / "process"
    sleeper.write_text(
        f"import os, time\nopen({str(told)!r} + '.new', 'w').write(str(os.getpid()))\n"
        f"os.rename({str(told)!r} + '.new', {str(told)!r})\ntime.sleep(600)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = subprocess.Popen([sys.executable, "-c", RUN, str(sleeper)], env=environment)
    try:
        wait_for(told.exists)
        worker = int(told.read_text())
        assert is_alive(worker)
    finally:
        run.send_signal(ending)
        run.wait()
    wait_for(lambda: not is_alive(worker))


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
