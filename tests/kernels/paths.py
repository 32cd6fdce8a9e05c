"""Where kernels run in these tests: which device, and which way through the kernels.

Triton decides when a kernel is defined whether it can be interpreted, so the variable is set here, before
anything imports one. Which path a call takes is decided again at each call.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import kernels
from tests.kernels.interpreting import patch_the_language_once_a_launch

VARIABLE = "TRITON_INTERPRET"
PACKAGES = [f"kernels.{found.name}" for found in pkgutil.iter_modules(kernels.__path__) if found.ispkg]


def _gpu() -> str | None:
    """The type of the accelerator that Triton compiles for here, if there is one."""
    if torch.cuda.is_available():  # NVIDIA, and AMD under the same name
        return "cuda"
    if torch.xpu.is_available():
        return "xpu"
    return None


GPU = _gpu()

if GPU is None:
    # Functions of Triton's own, tl.max for one, are interpreted only if they too are defined under the variable.
    assert "triton.language" not in sys.modules, (
        "triton is imported already: let that test module import it in its tests"
    )
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "1"
    for package in PACKAGES:  # importing defines the kernels as interpreted functions
        importlib.import_module(package)

    patch_the_language_once_a_launch()

    if before is None:
        del os.environ[VARIABLE]
    else:
        os.environ[VARIABLE] = before


@dataclass(frozen=True)
class KernelPath:
    """A way through the kernels, and the device that its inputs lie on."""

    name: str  # what `kernels.fp8.path(device)` answers
    device: torch.device


def cases(real: Sequence[Any], moderate: Sequence[Any], small: Sequence[Any] = ()) -> pytest.MarkDecorator:
    """Shapes with the path they take, chosen by the machine: nothing is listed that could not run."""
    if GPU:
        return pytest.mark.parametrize(("shape", "path"), [pytest.param(s, "triton", id=str(s)) for s in real])
    eager = [pytest.param(s, "eager", id=str(s)) for s in moderate]
    interpreted = [pytest.param(s, "interpreter", id=f"{s}-interpreted") for s in small]
    return pytest.mark.parametrize(("shape", "path"), eager + interpreted)


def open_path(path: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let interpreted kernels run, or keep them from it."""
    if path == "interpreter":
        monkeypatch.setenv(VARIABLE, "1")
    else:
        monkeypatch.delenv(VARIABLE, raising=False)


def candidates(operator: Callable[..., Any], *args: Any) -> Callable[[], list[dict[str, int]]]:
    """For `perfguard(configurations=…)`: every candidate that the operator's table holds for the device of its inputs.

    None on a CPU, where no candidate is launched; the interpreter's are the business of the behaviour tests.
    """

    def find() -> list[dict[str, int]]:
        found: list[dict[str, int]] = []
        while args[0].device.type != "cpu":
            try:
                operator(*args, candidate=len(found))
            except ValueError:  # "candidate: is 3; may be 0 to 2 here"
                break
            found.append({"candidate": len(found)})
        return found

    return find
