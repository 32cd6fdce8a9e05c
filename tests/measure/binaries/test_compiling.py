"""The cache, and compilers that hang, die or print. The compiler is a program of the test's own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from perfguard.measure.binaries import compiler as compiling
from perfguard.measure.binaries.compiler import Compiler
from perfguard.measure.binaries.kernel_facts import Built, Facts
from perfguard.measure.binaries.launch_recorder import Launch
from perfguard.measure.binaries.targets import Target

# Answers as the worker does, after what its argument asks for.
PROGRAM = """
import json, os, sys, time
for line in sys.stdin:
    request = json.loads(line)
    behaviour = request["launch"]["data"]
    if behaviour == "hang":
        time.sleep(600)
    while behaviour.startswith("wait for ") and not os.path.exists(behaviour[9:]):
        time.sleep(0.01)
    if behaviour == "die":
        print("LLVM ERROR: out of ideas", file=sys.stderr, flush=True)
        os.abort()
    code = {"code": "AAAA"} if behaviour.startswith("code") else {}
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


def launch(behaviour: str) -> Launch:
    return Launch("module", "module.py", "kernel", behaviour, source="0123")


def test_what_is_known_is_not_compiled_again(compiler: Compiler) -> None:
    wanted = [("sm_90", launch("a")), ("gfx942", launch("a"))]
    first = compiler.facts(wanted)
    assert {facts.registers for facts in first.values()} == {7}
    again = Compiler(compiler.folder)
    assert again.facts(wanted) == first
    assert (compiler.compiled, again.compiled) == (2, 0)


def test_another_triton_is_another_compiler(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler.facts([("sm_90", launch("a"))])
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__="3.10.0"))  # type: ignore[arg-type]
    later = Compiler(compiler.folder)
    later.facts([("sm_90", launch("a"))])
    assert later.compiled == 1


def test_a_compiler_that_dies_is_quoted_and_not_remembered(compiler: Compiler) -> None:
    wanted = ("sm_90", launch("die"))
    error = compiler.facts([wanted])[wanted].error
    assert error == "does not compile: the compiler ended with status -6: LLVM ERROR: out of ideas"
    assert not list(compiler.folder.glob("*"))


def test_a_compiler_that_hangs_is_given_up(compiler: Compiler) -> None:
    compiler.seconds = 0.5
    wanted = ("sm_90", launch("hang"))
    assert compiler.facts([wanted])[wanted].error == "does not compile: the compiler took longer than 0.5 s"


def test_the_disassembler_is_started_once_and_what_it_cannot_read_is_tried_alone(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def disassembled(target: Target, built: Sequence[Built]) -> list[Facts]:
        asked.append([each.facts.binary for each in built])
        if "code bad" in asked[-1]:
            raise subprocess.CalledProcessError(1, "nvdisasm")
        return [msgspec.structs.replace(each.facts, mix={"other": 5}) for each in built]

    monkeypatch.setattr(compiling, "disassembled", disassembled)
    wanted = [("sm_90", launch(behaviour)) for behaviour in ("code a", "code b", "plain")]
    facts = compiler.facts(wanted)
    assert asked == [["code a", "code b"]]
    assert [facts[each].instructions for each in wanted] == [5, 5, 0]

    wanted = [("sm_90", launch(behaviour)) for behaviour in ("code c", "code bad")]
    facts = compiler.facts(wanted)
    assert asked[1:] == [["code c", "code bad"], ["code c"], ["code bad"]]
    assert facts[wanted[0]].instructions == 5
    assert facts[wanted[1]].error == "cannot be disassembled: CalledProcessError"
    assert len(list(compiler.folder.glob("*"))) == 4  # the fifth is tried again


def test_a_damaged_cache_is_made_anew(compiler: Compiler) -> None:
    wanted = ("sm_90", launch("a"))
    first = compiler.facts([wanted])
    (file,) = compiler.folder.glob("*.json")
    file.write_bytes(b'{"binary": ')
    assert Compiler(compiler.folder).facts([wanted]) == first


def test_a_kernel_that_another_process_compiles_meanwhile_is_taken_from_the_cache(
    compiler: Compiler, tmp_path: Path
) -> None:
    compiler.__dict__["_size"] = 1
    late = ("sm_90", launch("b"))
    with ThreadPoolExecutor(1) as background:
        both = background.submit(compiler.facts, [("sm_90", launch(f"wait for {tmp_path / 'file'}")), late])
        Compiler(compiler.folder).facts([late])
        (tmp_path / "file").touch()
        assert both.result()[late].registers == 7
    assert compiler.compiled == 1
