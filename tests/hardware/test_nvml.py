"""The driver's words: NVML's bits, nvidia-smi's CSV, and what happens when neither is there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfguard.hardware import nvml
from perfguard.records import Conditions

# one line as nvidia-smi of driver 580 writes it for an idle H200, its mask changed
SMI_LINE = "580.159.04, 700.00, 1980, 3201, 40, 83.03, 0x0000000000000044\n"


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


def test_smi_line() -> None:
    state = nvml.parse_smi(SMI_LINE)
    assert state.driver == "580.159.04"
    assert state.power_limit_watts == 700
    assert state.conditions == Conditions(
        clock_mhz=1980,
        memory_clock_mhz=3201,
        temperature_celsius=40,
        power_watts=83.03,
        throttle_reasons=["sw_power_cap", "hw_thermal_slowdown"],
    )


def test_smi_values_in_brackets_are_unknown() -> None:
    state = nvml.parse_smi("550.54.15, [N/A], [N/A], 1593, 31, [Not Supported], [Unknown Error]")
    assert state == nvml.State(driver="550.54.15", conditions=Conditions(memory_clock_mhz=1593, temperature_celsius=31))


@pytest.mark.parametrize("line", ["", "No devices were found", "1, 2", "580, 700, fast, 3201, 40, 83, 0x0"])
def test_smi_line_that_is_none(line: str) -> None:
    with pytest.raises(ValueError):
        nvml.parse_smi(line)


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


def test_smi_where_pynvml_is_missing() -> None:
    commands = []

    def run(command: list[str]) -> str:
        commands.append(command)
        return SMI_LINE if "--query-compute-apps=pid" not in command else f"{os.getpid()}\n1\n"

    state = nvml.read(None, 3, pynvml=missing(), run=run)
    assert state.conditions.clock_mhz == 1980
    assert state.conditions.other_processes == 1
    assert state.warning == ""
    assert all("--id=3" in command for command in commands)


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError("nvidia-smi"), subprocess.CalledProcessError(9, "nvidia-smi"), ValueError("0 values")],
)
def test_neither_leaves_fields_empty_and_says_what_to_install(error: Exception) -> None:
    def run(command: list[str]) -> str:
        raise error

    state = nvml.read("GPU-1", pynvml=missing(), run=run)
    assert state.conditions == Conditions()
    assert "pynvml is not installed" in state.warning
    assert state.warning.endswith("pip install nvidia-ml-py")


def test_broken_pynvml_falls_back_too() -> None:
    module = pynvml(nvmlInit=None, nvmlShutdown=None)
    assert nvml.read("GPU-1", pynvml=module, run=lambda _command: SMI_LINE).driver == "580.159.04"


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
