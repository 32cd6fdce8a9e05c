"""Where kernels run in these tests: which device, and which way through the kernels.

Triton decides when a kernel is defined whether it can be interpreted, so the variable is set here, before
anything imports one. Which path a call takes is decided again at each call.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import kernels
from perfguard.interpreter.entry import interpret_here

VARIABLE = "TRITON_INTERPRET"
#: What the compiler does by itself while it traces.
COMPILING = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]
MOST_CANDIDATES = 8  # more than any table has: what accepts this many checks nothing
OTHER_ROWS = (17, 34, 96)  # multiples of 16 and others, which alone make other binaries where rows are specialised
PACKAGES = [f"kernels.{found.name}" for found in pkgutil.iter_modules(kernels.__path__) if found.ispkg]


def _gpu() -> str | None:
    """The type of the accelerator that Triton compiles for here, if there is one."""
    if torch.cuda.is_available():  # NVIDIA, and AMD under the same name
        return "cuda"
    if torch.xpu.is_available():
        return "xpu"
    return None


GPU = _gpu()
#: Guarded shapes are those of real models on a GPU, small ones on a CPU. KERNELS_SHAPES=small: small ones on a GPU too.
REAL = GPU is not None and os.environ.get("KERNELS_SHAPES") != "small"

if GPU is None:
    # Functions of Triton's own, tl.max for one, are interpreted only if they too are defined under the variable.
    language = sys.modules.get("triton.language")
    assert language is None or type(language.max).__name__ == "InterpretedFunction", (
        "triton is imported already: let that test module import it in its tests"
    )
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "1"
    for package in PACKAGES:  # importing defines the kernels as interpreted functions
        importlib.import_module(package)

    interpret_here()

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
        chosen = real if REAL else {str(shape): shape for shape in (*moderate, *small)}.values()
        return pytest.mark.parametrize(("shape", "path"), [pytest.param(s, "triton", id=str(s)) for s in chosen])
    eager = [pytest.param(s, "eager", id=str(s)) for s in moderate]
    interpreted = [pytest.param(s, "interpreter", id=f"{s}-interpreted") for s in small]
    return pytest.mark.parametrize(("shape", "path"), eager + interpreted)


def other_rows(shape: Any, inputs: Callable[[Any], Sequence[Any]]) -> list[Callable[[], Sequence[Any]]]:
    """For `perfguard(walk=…)`: the inputs of other numbers of rows, which should be no other binaries.

    They are small, also beside real shapes: what is counted are compilations, and a number that became a constant of
    a kernel costs one each time.
    """
    return [functools.partial(inputs, dataclasses.replace(shape, rows=number)) for number in OTHER_ROWS]


def open_path(path: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let interpreted kernels run, or keep them from it."""
    if path == "interpreter":
        monkeypatch.setenv(VARIABLE, "1")
    else:
        monkeypatch.delenv(VARIABLE, raising=False)


def launch_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a path of torch's operators a kernel is an error: it would be interpreted here, with the same numbers, and
    could not run for a user. What is followed on chips that are not here is followed as ever."""
    from triton.runtime.interpreter import InterpretedFunction

    def refused(kernel: Any, *_: Any, **__: Any) -> None:
        raise AssertionError(f"{kernel.fn.__name__} is launched on a path of torch's operators")

    monkeypatch.setattr(InterpretedFunction, "run", refused)


def every_second(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, every second one of a buffer: kernels that step by one read what lies between."""
    return torch.stack((tensor, torch.full_like(tensor, -1)), dim=-1)[..., 0]


@dataclass(frozen=True)
class Candidates:
    """For `perfguard(configurations=…)`: every candidate that an operator's tables hold for the device of its inputs.

    Of each test the first shape declares them; each is followed on five targets. All shapes do with `every`
    (--perfguard-all-configs), and then on a CPU the interpreter's candidates too, which the behaviour tests check.
    """

    first: bool
    every: bool

    def __call__(self, operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], list[dict[str, int]]]:
        def find() -> list[dict[str, int]]:
            found: list[dict[str, int]] = []
            interpreted = args[0].device.type == "cpu"
            launched = not interpreted or (self.every and os.environ.get(VARIABLE) == "1")
            if not launched or not (self.first or self.every):
                return found
            for number in range(MOST_CANDIDATES):
                try:
                    _forward_and_backward(operator(*args, **kwargs, candidate=number), args)
                except ValueError as error:  # "candidate: is 3; may be 0 to 2 here"
                    if number == 0 or not str(error).startswith("candidate: "):  # the default is there wherever
                        raise  # kernels launch: an empty list would check nothing
                    break
                except Exception:  # it does not fit the chip, say: its check and its binary tell, by its number
                    pass
                found.append({"candidate": number})
            return found

        return find


def every_candidate(call: Callable[[int], Any], least: int = 2) -> Iterator[tuple[int, Any]]:
    """Numbers and results of the candidates that a table holds, `least` or more; the number past them is refused by
    name."""
    from kernels.launch import MAX_CANDIDATES

    for number in range(MAX_CANDIDATES + 1):
        try:
            result = call(number)
        except ValueError as error:
            assert str(error).startswith(f"candidate: is {number}; may be 0 to "), error  # noqa: PT017
            assert number >= least, f"{number} candidates"
            return
        yield number, result
    raise AssertionError(f"more than {MAX_CANDIDATES} candidates, or any number is accepted")


def _forward_and_backward(outputs: Any, args: Sequence[Any]) -> None:
    """A backward pass may have fewer candidates than the forward one has."""
    results = [value for value in tree_leaves(outputs) if isinstance(value, torch.Tensor) and value.requires_grad]
    inputs = [value for value in args if isinstance(value, torch.Tensor) and value.requires_grad]
    if results and inputs:
        torch.autograd.grad(results, inputs, [torch.ones_like(value) for value in results], allow_unused=True)
