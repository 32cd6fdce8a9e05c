"""Tests of perfguard's interpreter. Triton is imported here as an interpreter, as its own functions must be, too."""

from __future__ import annotations

import os
import sys

VARIABLE = "TRITON_INTERPRET"
#: pytest in a process of its own, without plugins whose imports take as long as the rest.
PYTEST = (
    *(sys.executable, "-m", "pytest"),
    *(f"-pno:{plugin}" for plugin in ("cacheprovider", "benchmark", "hypothesispytest", "pytest_httpserver")),
)
#: What a run prints once if it chooses to interpret.
INTERPRETED = "perfguard: no GPU here: Triton's kernels are interpreted (TRITON_INTERPRET=1)"

_language = sys.modules.get("triton.language")
assert _language is None or type(_language.max).__name__ == "InterpretedFunction", (
    "triton is imported already: let that test module import it in its tests"
)
_before = os.environ.get(VARIABLE)
os.environ[VARIABLE] = "1"
import triton.experimental.gluon  # noqa: E402  # a first launch imports it, and must do so as the interpreter's
import triton.language  # noqa: E402

#: Kernels of these tests are defined with this, which interprets them whatever the variable says later.
jit = triton.runtime.interpreter.InterpretedFunction

if _before is None:
    del os.environ[VARIABLE]
else:
    os.environ[VARIABLE] = _before
