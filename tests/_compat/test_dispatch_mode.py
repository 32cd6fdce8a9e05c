"""Our dispatch modes: torch.compile stays unloaded where nothing is compiled, and passes them by where it is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from perfguard._compat.torch_utils import DispatchMode

ROOT = Path(__file__).parents[2]

USES = """
import sys
import torch
from perfguard.measure.devices.operator_kinds import Unwritten
from perfguard.measure.devices.operators import of_call
from perfguard.check.numerics.oracle import run_wide

activity = of_call(lambda: torch.ones(3) + 1)
assert activity.launches == ["aten.ones", "aten.add.Tensor"], activity
assert run_wide(lambda: torch.ones(3, dtype=torch.bfloat16), torch.float64).dtype is torch.float64
with Unwritten(on_the_host=False):
    assert torch.empty(3).tolist() == [0, 0, 0]
print(*{"torch._dynamo", "triton", "torch"} & sys.modules.keys())
"""


def test_no_mode_loads_the_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", USES], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("torch\n", "")


def _seen(base: type[TorchDispatchMode]) -> tuple[list[str], int]:
    """Operators that a mode sees of a compiled call that breaks its graph, and how many frames were compiled."""
    import torch._dynamo

    class Mode(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True

    def breaks(x: torch.Tensor) -> torch.Tensor:
        return x + x.sum().item()  # the read runs eagerly, between two compiled frames

    torch._dynamo.reset()
    counted = torch._dynamo.utils.counters["frames"]
    x, before = torch.ones(3), counted["total"]
    with Mode() as mode:
        torch.compile(breaks, backend="eager")(x)
    frames = counted["total"] - before
    torch._dynamo.reset()
    return mode.names, frames


def test_a_loaded_compiler_does_not_trace_a_mode() -> None:
    names, frames = _seen(DispatchMode)
    assert (names, frames) == _seen(TorchDispatchMode)
    assert "aten._local_scalar_dense.default" in names
    assert frames == 2  # before the read, and behind it
