"""The compiling process, with one request and one answer per line. Back ends may abort, hang or leak here.

`python -m perfguard.measure.binaries.compile_worker`, started by `compiler`. It must define kernels for Triton's
compiler, so TRITON_INTERPRET is not in its environment. TRITON_DISABLE_LINE_INFO keeps paths and line numbers out of
binaries.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
from msgspec import Struct

from perfguard._compat.triton_internals import FUNCTION, drive
from perfguard.measure.binaries.kernel_facts import Built, Facts, read_facts
from perfguard.measure.binaries.launch_recorder import Driver, Launch
from perfguard.measure.binaries.targets import Target, target_of


class Request(Struct, frozen=True):
    """A launch to compile for a target; `path` is the requesting process's sys.path."""

    target: str
    launch: Launch
    path: list[str]


def main() -> None:
    """Answer requests until the requesting process closes its end."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # for prints of compilers and imports
    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line, type=Request)
        answers.write(msgspec.json.encode(answer(request)) + b"\n")
        answers.flush()


def answer(request: Request) -> Built:
    """The result of the compilation, or its error."""
    sys.path[:] = request.path
    try:
        kernel = _kernel(request.launch)
        return _compiled(kernel, request.launch.data, target_of(request.target))
    except Exception as error:
        passing = isinstance(error, OSError | MemoryError | ImportError | subprocess.SubprocessError)
        return Built(Facts(error=f"does not compile: {type(error).__name__}: {_reason(str(error))}", passing=passing))


def _reason(text: str) -> str:
    """The line with the error, without folders, which differ between machines."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and "Repro command" not in line]
    blamed = [line for line in lines if re.search(r"\b(error|fatal)\b", line, re.IGNORECASE)]
    line = (blamed or lines or ["no reason given"])[-1]
    return re.sub(r"\S*/(?=[^/\s])", "", line)


def _compiled(kernel: Any, data: str, target: Target) -> Built:
    drive(Driver(target))
    described = msgspec.json.decode(data)
    asked = {**described, "options": _unchecked(described["options"]), "key": data}
    compiled = kernel.preload(msgspec.json.encode(asked).decode())
    return read_facts(compiled, target)


def _unchecked(options: dict[str, Any]) -> dict[str, Any]:
    """The options without overflow checks of integer sums, differences and products. Outside `debug` their results are
    never asserted, and are thrown away. They take a third of the time until there is an IR, and leave the same
    binary."""
    unasserted = not options.get("debug", True) and "sanitize_overflow" in options
    return {**options, "sanitize_overflow": False} if unasserted else options


def _kernel(launch: Launch) -> Any:
    """Triton's function, from the module that defines it."""
    if "<locals>" in launch.function:
        raise ValueError(f"{launch.function} is defined inside a function; define it in a module")
    found: Any = _module(launch)
    for name in launch.function.split("."):
        found = getattr(found, name)
    while not isinstance(found, FUNCTION.get()):  # an autotuner, heuristics
        found = found.fn
    return found


def _module(launch: Launch) -> ModuleType:
    """The module, found by its name, or by its file if pytest has named it differently."""
    with contextlib.suppress(ImportError):
        known = importlib.import_module(launch.module)
        file = getattr(known, "__file__", None)
        if file is not None and Path(file).resolve() == Path(launch.file).resolve():
            return known
    specification = importlib.util.spec_from_file_location(launch.module, launch.file)
    if specification is None or specification.loader is None:
        raise ImportError(f"{launch.file}: cannot be imported")
    module = importlib.util.module_from_spec(specification)
    sys.modules[launch.module] = module
    specification.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
