"""A metric, a vendor and a timer are one file each, dropped into the package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

METRIC = '''
"""Dimensions of what the call returns."""

from perfguard.model.limits import Limits
from perfguard.model.records import Better, Reading
from perfguard.model.units import Unit

TIMED = False
LIMITS = {"output_dims": Limits(Better.LOWER, portable=True)}


def read(subject, device):
    return [Reading("output_dims", Unit.COUNT, subject.run().dim(), portable=True)]
'''

VENDOR = '''
"""A simulated NPU."""

from perfguard.measure.devices.vendors import Finding, Vendor


class Npu(Vendor):
    names = ("npu", "npu:<index>")
    auto = 1
    driver, build = "Acme", "NPU"

    def understands(self, name):
        return name.partition(":")[0] == "npu"

    def is_here(self):
        return True

    def open(self, name):
        from perfguard.testing.fake import FakeDevice

        return FakeDevice("acme-npu")

    def built_for(self, torch):
        return "7"

    def has_driver(self, root):
        return True

    def tools(self, root, load):
        yield Finding("acme-smi", "7.1")


VENDOR = Npu()
'''

TIMER = '''
"""One event pair around each call."""

from perfguard.measure.timers.timing import Meter

RANK = 1


def suits(device):
    return device.asynchronous


def understands(timer):
    return timer == "stopwatch"


def prepare(workload, device, *, seconds, stored):
    def block():
        start, end = device.event(), device.event()
        device.sleep(200.0)
        start.record()
        workload.run()
        end.record()
        device.synchronize()
        return start.elapsed_us(end)

    return Meter("stopwatch", block, 1.0)
'''

# Folder of the package -> a file of one more.
KINDS = {
    "measure/metrics": METRIC,
    "measure/devices/vendors": VENDOR,
    "measure/timers": TIMER,
}

TEST = """
import torch
from perfguard.testing import fake

def double(x):
    fake.launch("double_kernel", us=50.0)
    return 2 * x

def test_double(perfguard):
    perfguard(double, torch.ones(8, 4), reference=lambda x: 2 * x)
"""


def dropped(folder: Path) -> Path:
    """A copy of the package with one more file of each kind."""
    copy = folder / "copy"
    # With what Python compiled of it; not what a process is writing now.
    shutil.copytree(ROOT / "perfguard", copy / "perfguard", ignore=shutil.ignore_patterns("*.pyc.*"))
    for place, source in KINDS.items():
        (copy / "perfguard" / place / "bark.py").write_text(source)
    return copy


class Shell:
    """Runs Python in a project that finds packages in `path` before all others."""

    def __init__(self, folder: Path, path: Path) -> None:
        self.folder = folder
        self.path = os.pathsep.join([str(path), str(ROOT)])

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
        environment |= {"PYTHONPATH": self.path, "TMPDIR": str(self.folder)}
        line = [sys.executable, "-m", *arguments]
        return subprocess.run(line, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)

    def guard(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("pytest", "--perfguard", "-p", "no:cacheprovider", *arguments)

    def asks(self, code: str) -> subprocess.CompletedProcess[str]:
        """Of Python itself, which has imported nothing yet."""
        (self.folder / "asks.py").write_text(code)
        return self.run("asks")

    def readings(self, slug: str) -> dict[str, Any]:
        report = json.loads((self.folder / ".perfguard" / f"report-{slug}.json").read_text())
        return {reading["metric"]: reading for result in report["results"] for reading in result["readings"]}


def project(folder: Path) -> Path:
    """One that guards one kernel on the simulated GPU."""
    folder.mkdir()
    (folder / "pyproject.toml").write_text('[tool.perfguard]\ndevice = "fake"\ntargets = []\ncase_seconds = 0.2\n')
    (folder / "test_double.py").write_text(TEST)
    return folder


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A project that was guarded on what 'auto' takes, where there is one more file of each kind."""
    root = tmp_path_factory.mktemp("extended")
    shell = Shell(project(root / "project"), dropped(root))
    done = shell.guard("--perfguard-device=auto")
    assert done.returncode == 0, done.stdout + done.stderr
    return shell


def test_a_metric_is_one_file(extended: Shell) -> None:
    assert extended.readings("acme-npu")["output_dims"]["value"] == 2
    code = (
        "import sys; from perfguard.measure.metrics import all_limits\n"
        "print(all_limits()['output_dims'].portable, 'torch' in sys.modules)"
    )
    assert extended.asks(code).stdout == "True False\n"  # as the trusted side does, which has no torch


def test_a_vendor_is_one_file(extended: Shell) -> None:
    assert extended.readings("acme-npu")
    names = extended.asks("from perfguard.measure.devices import known_names; print(*known_names()[:3])")
    assert names.stdout == "auto npu npu:<index>\n"
    doctor = [line.split() for line in extended.run("perfguard", "doctor").stdout.splitlines()]
    assert ["acme-smi", "7.1"] in doctor
    assert ["device", "hardware", "acme-npu"] in doctor
    assert ["Acme", "driver", "present"] in [line[:3] for line in doctor]


def test_a_timer_is_one_file(extended: Shell) -> None:
    assert extended.readings("acme-npu")["device_time_us"]["timer"] == "stopwatch"
