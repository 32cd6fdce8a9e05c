"""Every private name of another project is still there in the installed version; and what an error says if one is not.

A failure here names the project, its version, the name, and what perfguard uses it for. It is the first test to look at
after an upgrade.
"""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
import torch

from perfguard import _compat
from perfguard._compat import torch_internals
from perfguard._compat.private import Private, PrivateNameGone, version_of

ROOT = Path(__file__).parents[2]


def modules() -> list[ModuleType]:
    return [
        importlib.import_module(f"{_compat.__name__}.{found.name}") for found in pkgutil.iter_modules(_compat.__path__)
    ]


def declared() -> Iterator[Private]:
    for module in modules():
        for value in vars(module).values():
            several = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,)
            yield from (each for each in several if isinstance(each, Private))


NAMES = sorted(set(declared()), key=lambda each: (each.module, each.name))


def test_every_file_of_the_room_declares_what_it_uses() -> None:
    helpers = {"private"}
    own = {module.__name__.rpartition(".")[2] for module in modules()} - helpers
    assert own == {
        module.__name__.rpartition(".")[2]
        for module in modules()
        if any(isinstance(each, Private) for each in getattr(module, "NAMES", ()))
    }
    assert {"torch", "triton", "_pytest", "xdist", "pytest_benchmark"} == {each.project for each in NAMES}


@pytest.mark.parametrize("private", NAMES, ids=lambda each: f"{each.module}:{each.name}")
def test_the_name_is_there(private: Private) -> None:
    pytest.importorskip(private.project)
    if private in torch_internals.ONLY_WITH_GPU and not torch.cuda.is_available() and torch.version.cuda is None:
        pytest.skip("only a torch that is built for a GPU has it")
    private.get()


def test_a_name_that_is_gone_is_an_error_with_its_version_and_its_use() -> None:
    gone = Private("torch._dynamo", "nothing_of_this_name", "looking for nothing")
    with pytest.raises(PrivateNameGone) as raised:
        gone.get()
    assert str(raised.value) == (
        f"torch {metadata.version('torch')} no longer has torch._dynamo.nothing_of_this_name, used for looking for "
        "nothing; install a version that perfguard was tried with (its pyproject.toml), or update perfguard"
    )
    assert gone.loaded() is None
    with pytest.raises(PrivateNameGone, match=r"no longer has torch\.nothing, used for"):
        Private("torch.nothing", "", "looking").get()
    absent = Private("nothing_of_this_name.part", "x", "looking")
    with pytest.raises(ModuleNotFoundError, match="nothing_of_this_name"):  # Python's own error
        absent.get()
    assert absent.loaded() is None
    assert version_of("_pytest") == f"pytest {pytest.__version__}"


def test_declaring_names_loads_nothing_of_their_projects() -> None:
    names = "pytest_internals, torch_compiler, torch_internals, triton_internals"
    code = f"import sys; from perfguard._compat import {names}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"torch", "triton", "_pytest", "pytest", "xdist", "pytest_benchmark"} & set(done.stdout.split())
