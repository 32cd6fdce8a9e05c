"""conftest.py of every project: kernels can be interpreted where there is no GPU, and are where a test says so.

Sessions on the simulated GPU are alike. At the noise of a real one a slowdown stays UNRESOLVED now and then, and how
often is for the judge's own tests to say.
"""

from __future__ import annotations

import functools
import os

import pytest
import torch

from perfguard.testing import fake

fake.FakeDevice = functools.partial(fake.FakeDevice, session_noise=0.0005)  # type: ignore[assignment,misc]

GPU = torch.cuda.is_available()

if not GPU:
    # Triton decides when a kernel is defined, which is when the suite is imported, whether it can be interpreted.
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish() -> None:
    os.environ.pop("TRITON_INTERPRET", None)


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls go through Triton's interpreter; on a GPU they are compiled as ever."""
    if not GPU:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
