"""The compiling process, with one request and one answer per line. Back ends may abort, hang or leak in it.

`compiler` starts it with its own process id as the last argument. It must define kernels for Triton's compiler, so its
environment lacks TRITON_INTERPRET. TRITON_DISABLE_LINE_INFO keeps paths and line numbers out of binaries.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import msgspec
from msgspec import Struct

from perfguard._compat.triton_internals import compiled_for, driven_by, first_ir, function_in, source_of
from perfguard.measure.binaries.kernel_facts import Built, read_facts
from perfguard.measure.binaries.launch_recorder import Launch
from perfguard.measure.binaries.targets import Driver, target_of
from perfguard.model.orphans import end_with

UNCOMPILABLE = "does not compile"  # This is a fact of the kernel.
NOT_COMPILED_HERE = "could not be compiled here"  # This is a problem of the machine.

# `tt.func private @"helpers.add__fp32"(%arg0: f32)`
_FUNCTION = re.compile(r'\btt\.func (?:public |private )?@("[^"]*"|[\w.$-]+)')
_SYMBOL = re.compile(r'@("[^"]*"|[\w.$-]+)')
# `ttng.wait_barrier`, `tt.atomic_rmw fadd, release, gpu`, `"griddepcontrol.wait; …"` in inline assembly
_ORDERED = re.compile(
    r"\b(?:tt|ttg|ttng|gpu|nvvm|rocdl|amdg)\.\w*(?:atomic|barrier|wait|fence|commit)"
    r"|\b(?:acq_rel|acquire|release)\b|\b(?:griddepcontrol|membar|fence|mbarrier|s_waitcnt|s_barrier)\b"
)
# Triton 3.9 names all parts of a hint, older versions those that differ from the default, as names or as numbers.
_HINTED = re.compile(
    r"isVolatile = true|cache_?[mM]odifier = (?!none|1\b)\w|eviction_?[pP]olicy = (?!evict_normal|1\b)\w"
)
_TARGET = re.compile(r'"?ttg\.target"? = "[^"]*",? ?')


class Request(Struct, frozen=True):
    """A launch to compile for a target. `path` is sys.path for the kernel's module; None leaves it unchanged."""

    wanted: Literal["binary", "ir"]
    target: str
    launch: Launch
    path: list[str] | None


class FirstIr(Struct, frozen=True, omit_defaults=True):
    """Triton's first IR of a launch.

    Attributes:
        digest: hash of the canonical text; empty if there is no IR.
        of_target: whether the kernel queries its target, so that another target may have another IR.
        error: the reason why there is no IR.
        kept: whether a cache may keep it.
        ordered: number of operations that order others: atomics, barriers, waits, fences; and of acquires and releases.
        hinted: number of hints to caches, and of volatile accesses.
        wide, narrow: numbers of pointer offsets, and of integer products, in 64 and in 32 bits.
    """

    digest: str = ""
    of_target: bool = False
    error: str = ""
    kept: bool = True
    ordered: int = 0
    hinted: int = 0
    wide: tuple[int, ...] = (0, 0)
    narrow: tuple[int, ...] = (0, 0)

    @classmethod
    def failed(cls, error: str, *, passing: bool, kept: bool) -> FirstIr:
        """The result without an IR; whether the machine is at fault shows only in `kept`."""
        return cls(error=error, kept=kept)

    def is_narrower_than(self, other: FirstIr) -> bool:
        """Whether addresses that the other IR computes in 64 bits are computed in 32: of offsets, or of products, fewer
        have 64 bits and more have 32. If a pointer is moved in 64 bits, and then by less in 32 bits, no fewer have
        64."""
        sides = zip(self.wide, other.wide, self.narrow, other.narrow, strict=True)
        return any(wide < before and narrow > then for wide, before, narrow, then in sides)


#: The type of the answer to each kind of request.
RESULTS: dict[Literal["binary", "ir"], type[Built | FirstIr]] = {"binary": Built, "ir": FirstIr}


def main() -> None:
    """Send Triton's version, then answer requests until the requesting process ends or closes its end."""
    end_with(int(sys.argv[-1]))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # Compilers and imports may print.
    import triton

    _send(answers, f"triton {triton.__version__}")
    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line, type=Request)
        _send(answers, answer(request))


def _send(answers: Any, answer: Any) -> None:
    answers.write(msgspec.json.encode(answer) + b"\n")
    answers.flush()


def answer(request: Request) -> Built | FirstIr:
    """The requested binary or IR of the launch, or the error."""
    try:
        if request.path is not None:
            sys.path[:] = request.path
        kernel = _kernel(request.launch)  # The user's modules are imported without a simulated target.
    except Exception as error:
        return _failed(request, error, passing=not isinstance(error, _LocalKernel))
    driver = Driver(target_of(request.target))
    try:
        with driven_by(driver):
            return _made(request, kernel, driver)
    except Exception as error:
        return _failed(request, error, passing=_is_of_the_machine(error))


def _made(request: Request, kernel: Any, driver: Driver) -> Built | FirstIr:
    data = msgspec.json.decode(request.launch.data)
    options = _without_overflow_checks(data["options"])
    target, source = driver.get_current_target(), source_of(kernel, data)
    if request.wanted == "binary":
        return read_facts(compiled_for(target, source, options), driver.target)
    ir = canonical(first_ir(target, source, options, driver.questions.clear))
    wide, narrow = (tuple(len(each.findall(ir)) for each in kinds) for kinds in (_widths(64), _widths(32)))
    digest = hashlib.sha256(ir.encode()).hexdigest()[:16]
    ordered, hinted = (len(each.findall(ir)) for each in (_ORDERED, _HINTED))
    return FirstIr(digest, bool(driver.questions), ordered=ordered, hinted=hinted, wide=wide, narrow=narrow)


def _widths(bits: int) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Patterns of pointer offsets, and of integer products, with this number of bits."""
    return re.compile(rf"tt\.addptr .*, (?:tensor<\S*x)?i{bits}>?$", re.M), re.compile(
        rf"arith\.muli .* : (?:tensor<\S*x)?i{bits}>?$", re.M
    )


def canonical(ir: str) -> str:
    """The IR, printed without locations, with functions numbered in order and without the target's name.

    Triton prints values as numbers within each function. Functions that a kernel calls follow it in the order of their
    first call.
    """
    numbers = {name: f"@{number}" for number, name in enumerate(dict.fromkeys(_FUNCTION.findall(ir)))}
    return _SYMBOL.sub(lambda found: numbers.get(found[1], found[0]), _TARGET.sub("", ir))


class _LocalKernel(ValueError):
    """A kernel is defined in a function, so no other process can find it."""


def _failed(request: Request, error: BaseException, *, passing: bool) -> Built | FirstIr:
    text = f"{NOT_COMPILED_HERE if passing else UNCOMPILABLE}: {type(error).__name__}: {_reason(str(error))}"
    return RESULTS[request.wanted].failed(text, passing=passing, kept=not passing)


def _is_of_the_machine(error: BaseException) -> bool:
    """Whether an error is of the compiling machine and not of the kernel: it concerns files, memory, programs or
    modules, or torch raised it because a kernel's own Python needs a device."""
    causes = list(_causes(error))
    if any(isinstance(each, OSError | MemoryError | ImportError | subprocess.SubprocessError) for each in causes):
        return True
    return any(_raising_module(each).partition(".")[0] == "torch" for each in causes)


def _causes(error: BaseException | None) -> Any:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _raising_module(error: BaseException) -> str:
    """The module whose code raised the error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))


def _reason(text: str) -> str:
    """The line of the error, without folders and addresses, which differ between machines and processes."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and "Repro command" not in line]
    blamed = [line for line in lines if re.search(r"\b(error|fatal)\b", line, re.IGNORECASE)]
    line = (blamed or lines or ["no reason given"])[-1]
    return re.sub(r"\S*/(?=[^/\s])| at 0x[0-9a-f]+", "", line)


def _without_overflow_checks(options: dict[str, Any]) -> dict[str, Any]:
    """The options without overflow checks of integer sums, differences and products. Outside `debug` the checks are
    never asserted, so the binary is the same, but they take a third of the time until there is an IR."""
    unasserted = not options.get("debug", True) and "sanitize_overflow" in options
    return {**options, "sanitize_overflow": False} if unasserted else options


def _kernel(launch: Launch) -> Any:
    """The kernel (JITFunction), from the module that defines it."""
    if "<locals>" in launch.function:
        raise _LocalKernel(f"{launch.function} is defined inside a function; define it in a module")
    return function_in(_module(launch), launch.function)


def _module(launch: Launch) -> ModuleType:
    """The module with the kernel, by its name, or by its file if pytest has named the module differently."""
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
    try:
        specification.loader.exec_module(module)
    except BaseException:
        del sys.modules[launch.module]
        raise
    return module


if __name__ == "__main__":
    main()
