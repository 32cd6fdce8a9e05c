"""Fixtures of the kernel tests.

On a GPU kernels run compiled. Without one each test runs twice: through the eager path, and through Triton's
interpreter.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from tests.kernels.paths import GPU, Candidates, KernelPath, launch_nothing, open_path


def pytest_collection_finish() -> None:
    """What torch and Triton made of themselves is there to stay: each full collection looks at a million objects."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before marks are looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With every change the lane `cpu` judges every case of the guarded suites. Beside it one case of each test shows
    that plain pytest runs them, and the others are tested every night."""
    seen = set()
    for item in items:
        if item.path.name.endswith("_guarded.py"):
            test = item.nodeid.partition("[")[0]
            if test in seen:
                item.add_marker(pytest.mark.nightly)
            seen.add(test)


def pytest_sessionfinish() -> None:
    """For Triton, which tells of what is left when it is unloaded."""
    gc.unfreeze()


def _enter(name: str, monkeypatch: pytest.MonkeyPatch) -> KernelPath:
    from kernels import fp8

    device = torch.device(GPU if name == "triton" and GPU else "cpu")
    open_path(name, monkeypatch)
    taken = fp8.path(device)
    assert taken == name, f"the {name} path is not open: kernels.fp8.path({device}) answers {taken!r}"
    return KernelPath(name, device)


@pytest.fixture(params=["triton"] if GPU else ["eager", "interpreter"])
def kernel_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> KernelPath:
    """Every path that runs here, one after the other."""
    return _enter(request.param, monkeypatch)


@pytest.fixture(params=["triton"] if GPU else ["interpreter"])
def triton_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> KernelPath:
    """The path that runs the Triton kernels here: compiled on a GPU, else interpreted."""
    return _enter(request.param, monkeypatch)


@pytest.fixture(params=["triton"] if GPU else ["eager"])
def compiled_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> KernelPath:
    """The path that a user without a reason takes: kernels on a GPU, torch operators on a CPU."""
    return _enter(request.param, monkeypatch)


@pytest.fixture
def on_path(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open the way that a case of a guarded suite takes, and make sure that it is taken."""
    from kernels import fp8, operators
    from kernels.moe import rows

    open_path(path, monkeypatch)
    assert {package.path(GPU or "cpu") for package in (fp8, operators, rows)} == {path}
    if path == "eager":
        launch_nothing(monkeypatch)


@pytest.fixture
def candidates(request: pytest.FixtureRequest) -> Candidates:
    """Names the candidates of an operator."""
    first = not any(request.node.callspec.indices.values())
    return Candidates(first, every=request.config.getoption("perfguard_all_configs"))


@pytest.fixture
def gpu() -> torch.device:
    if GPU is None:
        pytest.skip("needs a GPU: neither torch.cuda nor torch.xpu is available here")
    return torch.device(GPU)


@pytest.fixture(autouse=True, scope="session")
def given_inputs_alone(request: pytest.FixtureRequest) -> None:
    """With every change the guarded tests check the inputs that they make. Derived ones take as long again, and are
    others at every commit: they are checked every night, and by each lane of `scripts/guard`."""
    config = request.config
    if config.getoption("--daily"):
        from msgspec.structs import replace

        from perfguard.measure.devices import open_device
        from perfguard.model.config import read_settings
        from perfguard.pytest_plugin.fixture import OPENED

        settings = read_settings(config.rootpath, device=config.option.perfguard_device)
        config.stash[OPENED] = open_device(settings.device), replace(settings, extra_seconds=0.0)


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Each test draws the same data, whatever ran before it."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(0)
        yield
