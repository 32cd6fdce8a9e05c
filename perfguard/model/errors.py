"""Every error that perfguard raises, and the exit status of a run.

::

    Exception
    └── PerfguardError            begins with the name of the thing, ends with the next step
        ├── UsageError            a wrong call, option or configuration value
        ├── BaselineError         a baseline file that cannot be read or may not be written
        ├── DeviceError           a device that is absent, busy or cannot be measured
        ├── GitHubError           a request to GitHub failed (perfguard/github/api/client.py)
        ├── LaneError             a lane's delivery is refused
        └── MeasurementError      a call that could not be measured (it raised, hung, was not deterministic …)
    AssertionError
    └── GuardFailure              a guarded case failed: the test fails like any other
        ├── WrongResult           numerics, contract of NaN/Inf positions, modified inputs
        └── Regression            slower, heavier or different
"""

from __future__ import annotations

import enum
import re
import sys


class PerfguardError(Exception):
    """An error that stops perfguard. The message names the subject and the next step."""


class UsageError(PerfguardError, ValueError):
    """A wrong call, option or configuration value."""


class BaselineError(PerfguardError):
    """A baseline file that cannot be read, or an update that may not be written."""


class DeviceError(PerfguardError):
    """A device that is absent, busy, or that cannot be measured as asked."""


class GitHubError(PerfguardError):
    """A request to GitHub failed, which never changes a verdict."""


class LaneError(PerfguardError):
    """A lane's delivery is refused: it is not the expected archive, report or commit."""


class MeasurementError(PerfguardError):
    """A guarded call that could not be measured."""


class GuardFailure(AssertionError):
    """A guarded case failed; pytest reports it as a failed test."""


class WrongResult(GuardFailure):
    """The candidate's results differ from the reference by more than the tolerance."""


class Regression(GuardFailure):
    """The case is slower, heavier or different than its baseline."""


def shown(value: object) -> str:
    """The text of a user's value in a message: its repr, or its class if repr fails."""
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"


_OUT_OF_MEMORY = re.compile(r"out of memory|DefaultCPUAllocator: can't allocate memory", re.IGNORECASE)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device or the host ran out of memory. torch is not needed, since it may be missing."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"OutOfMemoryError", "MemoryError"}) or (
        isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None
    )


def hit_recompile_limit(error: BaseException) -> bool:
    """Whether torch.compile refused to compile one more variant of a whole graph."""
    return any(kind.__name__ == "FailOnRecompileLimitHit" for kind in type(error).__mro__)


def next_step(error: BaseException) -> str:
    """The next step after an error of the user's call; empty if none is known."""
    if "0 active drivers" in str(error):  # This is Triton's message if it found no GPU.
        return "Triton found no GPU: TRITON_INTERPRET=1 runs its kernels in the interpreter"
    if hit_recompile_limit(error):
        return "torch.compile compiled it anew too often: TORCH_LOGS=recompiles names what changes from call to call"
    asks = re.search(r"\bcuda\b(?! error| out of)", str(error), re.IGNORECASE)
    if asks and "torch" in sys.modules and not sys.modules["torch"].cuda.is_available():
        return "no GPU here: let it take CPU tensors if TRITON_INTERPRET is set, or skip it by perfguard.unsupported(…)"
    return ""


def described(error: BaseException) -> str:
    """`ValueError: its first line`, with the next step if one is known."""
    summary = ": ".join(filter(None, (type(error).__name__, *str(error).splitlines()[:1])))
    return "; ".join(filter(None, (summary, next_step(error))))


class ExitStatus(enum.IntEnum):
    """Exit status of `pytest --perfguard` and `perfguard`; 0 to 5 keep pytest's meaning.

    If several apply, the first of WRONG, REGRESSED, TESTS_FAILED, NOTHING_MEASURED, UNGUARDED counts.
    INTERRUPTED, INTERNAL_ERROR, USAGE_ERROR and NO_TESTS are never replaced.
    """

    PASSED = 0
    TESTS_FAILED = 1
    INTERRUPTED = 2
    INTERNAL_ERROR = 3
    USAGE_ERROR = 4
    NO_TESTS = 5
    REGRESSED = 10
    WRONG = 11
    NOTHING_MEASURED = 12
    UNGUARDED = 13
    NOT_POSTED = 14


EXIT_MEANINGS: dict[ExitStatus, str] = {
    ExitStatus.PASSED: "every guarded case passed (new or unresolved cases are listed)",
    ExitStatus.TESTS_FAILED: "a test failed for a reason of its own, or a guarded case is BROKEN",
    ExitStatus.INTERRUPTED: "interrupted",
    ExitStatus.INTERNAL_ERROR: "internal error",
    ExitStatus.USAGE_ERROR: "wrong option, configuration, baseline file or device",
    ExitStatus.NO_TESTS: "no tests collected",
    ExitStatus.REGRESSED: "a guarded case is SLOWER or CHANGED",
    ExitStatus.WRONG: "a guarded case is WRONG",
    ExitStatus.NOTHING_MEASURED: "no case was measured",
    ExitStatus.UNGUARDED: "strict: a case is not guarded; or inconclusive: most times could not be judged",
    ExitStatus.NOT_POSTED: "perfguard comment: a GitHub request failed, or the result was not posted",
}
