"""The driver's words: NVML's bits, and what happens when nobody can read them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfguard.measure.devices import nvml
from perfguard.model.records import Conditions


class NVMLError(Exception):
    pass


def missing(name: str = "pynvml") -> Any:
    class Missing:
        def __getattr__(self, attribute: str) -> Any:
            raise ImportError(name)

    return Missing()


def pynvml(**answers: Any) -> Any:
    """A stand-in for the module: every function gives the answer with its name, or says 'not supported'."""
    asked: list[tuple[str, tuple[object, ...]]] = []

    class Module(SimpleNamespace):
        def __getattr__(self, name: str) -> Callable[..., Any]:
            def function(*args: object) -> Any:
                asked.append((name, args))
                if name not in answers:
                    raise NVMLError("not supported")
                answer = answers[name]
                return answer(*args) if callable(answer) else answer

            return function

    return Module(NVMLError=NVMLError, NVML_CLOCK_SM=1, NVML_CLOCK_MEM=2, NVML_TEMPERATURE_GPU=0, asked=asked)


BASIC: dict[str, Any] = {"nvmlInit": None, "nvmlShutdown": None, "nvmlDeviceGetHandleByUUID": "gpu"}


def test_idle_is_no_throttling() -> None:
    assert nvml.throttle_reasons(0x1) == []
    assert nvml.throttle_reasons(0x1FF) == list(nvml.THROTTLE_REASONS.values())


def test_pynvml_is_asked_for_the_device_by_uuid() -> None:
    module = pynvml(
        **BASIC,
        nvmlSystemGetDriverVersion=b"535.104.05",
        nvmlDeviceGetClockInfo=lambda _handle, kind: {1: 1980, 2: 3201}[kind],
        nvmlDeviceGetTemperature=61,
        nvmlDeviceGetPowerUsage=83026,
        nvmlDeviceGetEnforcedPowerLimit=700000,
        nvmlDeviceGetCurrentClocksThrottleReasons=0x8,  # the name that older modules have
        nvmlDeviceGetComputeRunningProcesses=[SimpleNamespace(pid=os.getpid()), SimpleNamespace(pid=1)],
    )
    state = nvml.read("GPU-1", pynvml=module)
    assert state == nvml.State(
        conditions=Conditions(
            clock_mhz=1980,
            memory_clock_mhz=3201,
            temperature_celsius=61,
            power_watts=83.026,
            throttle_reasons=["hw_slowdown"],
            other_processes=1,
        ),
        driver="535.104.05",
        power_limit_watts=700,
    )
    assert ("nvmlDeviceGetHandleByUUID", ("GPU-1",)) in module.asked
    assert module.asked[-1][0] == "nvmlShutdown"


def test_pynvml_of_a_gpu_that_supports_little() -> None:
    state = nvml.read("GPU-1", pynvml=pynvml(**BASIC, nvmlSystemGetDriverVersion="580.1"))
    assert state == nvml.State(driver="580.1")


def test_clocks_of_a_mig_partition_are_the_board_s() -> None:
    module = pynvml(
        **BASIC,
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle="board",
        nvmlDeviceGetTemperature=lambda handle, _sensor: {"board": 50}[handle],
    )
    assert nvml.read("MIG-1", pynvml=module).conditions.temperature_celsius == 50


@pytest.mark.parametrize(
    ("module", "problem"),
    [(missing(), "pynvml is not installed"), (pynvml(nvmlInit=None, nvmlShutdown=None), "pynvml: not supported")],
    ids=["absent", "broken"],
)
def test_without_nvml_fields_are_empty_and_it_says_what_to_install(module: Any, problem: str) -> None:
    state = nvml.read("GPU-1", pynvml=module)
    assert state.conditions == Conditions()
    assert problem in state.warning
    assert state.warning.endswith("pip install nvidia-ml-py")


def test_other_processes() -> None:
    me, nobody = os.getpid(), 2**22 + 1  # above the largest process number of Linux
    assert nvml.others([]) == 0
    assert nvml.others([me]) == 0
    assert nvml.others([me, os.getppid()]) == 1
    assert nvml.others([nobody]) == 0  # numbers of the host: one of them is this process
    assert nvml.others([os.getppid()]) == 1


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build", "580.95.05"),
        ("something else", None),
    ],
)
def test_driver_version_from_the_kernel(tmp_path: Path, text: str, version: str | None) -> None:
    path = tmp_path / "version"
    path.write_text(text)
    assert nvml._driver_from(path) == version
    assert nvml._driver_from(tmp_path / "absent") is None
