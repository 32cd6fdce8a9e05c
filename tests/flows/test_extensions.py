"""A metric, a vendor, a timer and an output, each of one file: dropped into the package, and installed beside it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.nursery import Nursery

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

OUTPUT = '''
"""Counts cases."""

ALONE = True


def render(overview):
    return f"{sum(len(lane.report.results) for lane in overview.lanes)} cases barked"
'''

# Kind -> the folder of our own, and a file of one more.
KINDS = {
    "metrics": ("measure/metrics", METRIC),
    "devices": ("measure/devices/vendors", VENDOR),
    "timers": ("measure/timers", TIMER),
    "outputs": ("render/outputs", OUTPUT),
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


def dropped(folder: Path, **sources: str) -> Path:
    """A copy of the package with one more file of each kind."""
    copy = folder / "copy"
    shutil.copytree(ROOT / "perfguard", copy / "perfguard", ignore=shutil.ignore_patterns("__pycache__"))
    for kind, source in sources.items():
        (copy / "perfguard" / KINDS[kind][0] / "bark.py").write_text(source)
    return copy


def installed(folder: Path, **sources: str) -> Path:
    """A folder of packages, with one that declares a module of each kind."""
    about = folder / "site" / "acme_bark-1.5.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-bark\nVersion: 1.5\n")
    points = [f"[perfguard.{kind}]\nbark = acme_{kind}\n" for kind in sources]
    (about / "entry_points.txt").write_text("\n".join(points))
    for kind, source in sources.items():
        (folder / "site" / f"acme_{kind}.py").write_text(source)
    return folder / "site"


class Shell:
    """Runs Python in a project that finds packages in `path` before all others. `python`: of a nursery, where `path`
    holds no package of ours."""

    def __init__(self, folder: Path, path: Path, python: str = sys.executable) -> None:
        self.folder = folder
        self.path = os.pathsep.join([str(path), str(ROOT)])
        self.python = python

    def run(self, *arguments: str, python: str = "") -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
        environment |= {"PYTHONPATH": self.path, "TMPDIR": str(self.folder)}
        line = [python or self.python, "-m", *arguments]
        return subprocess.run(line, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)

    def guard(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("pytest", "--perfguard", "-p", "no:cacheprovider", *arguments)

    def asks(self, code: str) -> subprocess.CompletedProcess[str]:
        """Of Python itself, which has imported nothing yet."""
        (self.folder / "asks.py").write_text(code)
        return self.run("asks", python=sys.executable)

    def readings(self, slug: str) -> dict[str, Any]:
        report = json.loads((self.folder / ".perfguard" / f"report-{slug}.json").read_text())
        return {reading["metric"]: reading for result in report["results"] for reading in result["readings"]}


def project(folder: Path) -> Path:
    """One that guards one kernel on the simulated GPU."""
    folder.mkdir()
    (folder / "pyproject.toml").write_text('[tool.perfguard]\ndevice = "fake"\ntargets = []\ncase_seconds = 0.2\n')
    (folder / "test_double.py").write_text(TEST)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return project(tmp_path / "project")


@pytest.fixture(scope="module", params=[dropped, installed], ids=["in the package", "installed"])
def extended(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Shell:
    """A project that was guarded on what 'auto' takes, where there is one more file of each kind."""
    root = tmp_path_factory.mktemp("extended")
    path = request.param(root, **{kind: text for kind, (_, text) in KINDS.items()})
    shell = Shell(project(root / "project"), path, nursery.python if request.param is installed else sys.executable)
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


def test_an_output_is_one_file(extended: Shell) -> None:
    report = ".perfguard/report-acme-npu.json"
    done = extended.run("perfguard", "report", report, "--as", "bark")
    assert (done.returncode, done.stdout) == (0, "1 cases barked\n"), done.stderr
    assert "'bark'" in extended.run("perfguard", "report", report, "--as", "meow").stderr


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("TIMED = False", "acme_metrics has no read"),
    ],
)
def test_a_broken_extension_is_one_error_that_names_its_package(
    tmp_path: Path, folder: Path, nursery: Nursery, source: str, reason: str
) -> None:
    shell = Shell(folder, installed(tmp_path, metrics=source), nursery.python)
    done = shell.guard()
    error = f"acme-bark 1.5: its metric 'bark' cannot be used ({reason}); update it, or pip uninstall acme-bark"
    assert (done.returncode, done.stderr.strip()) == (4, f"ERROR: {error}")
    doctor = shell.run("perfguard", "doctor")
    assert doctor.returncode == 0
    (line,) = (line for line in doctor.stdout.splitlines() if line.startswith("metric bark"))
    assert reason[:18] in line  # the rest is folded
    assert line.rstrip().endswith("update it, or pip uninstall acme-bark")


def test_the_doctor_works_beside_a_broken_vendor_and_lists_what_is_installed(
    tmp_path: Path, folder: Path, nursery: Nursery
) -> None:
    shell = Shell(folder, installed(tmp_path, devices="VENDORS = []"), nursery.python)
    doctor = shell.run("perfguard", "doctor").stdout
    assert "torch" in doctor
    assert "acme_devices has no VENDOR" in doctor
    (tmp_path / "site" / "acme_devices.py").write_text(VENDOR)
    lines = [line.split() for line in shell.run("perfguard", "doctor").stdout.splitlines()]
    assert ["vendor", "bark", "acme-bark", "1.5"] in lines


def test_a_plain_run_of_pytest_imports_no_extension(tmp_path: Path, folder: Path) -> None:
    noted = f"open({str(tmp_path / 'seen')!r}, 'w')\n"
    shell = Shell(folder, installed(tmp_path, **{kind: noted + source for kind, (_, source) in KINDS.items()}))
    (folder / "test_plain.py").write_text("def test_plain():\n    pass\n")
    assert shell.run("pytest", "test_plain.py").returncode == 0
    assert not (tmp_path / "seen").exists()
    assert shell.run("pytest", "test_double.py").returncode == 0  # checks a result, and measures nothing
    assert not (tmp_path / "seen").exists()


def test_an_output_of_another_package_takes_none_of_our_names(tmp_path: Path, folder: Path) -> None:
    site = installed(tmp_path, outputs=OUTPUT)
    (site / "acme_bark-1.5.dist-info" / "entry_points.txt").write_text("[perfguard.outputs]\nhtml = acme_outputs\n")
    done = Shell(folder, site).asks("from perfguard.render.outputs import output; output('html')")
    assert "acme-bark 1.5: its output 'html' has the name of another one; pip uninstall acme-bark" in done.stderr


def test_limits_of_our_metrics_are_not_another_packages_to_declare(tmp_path: Path, folder: Path) -> None:
    loose = METRIC.replace('"output_dims": Limits', '"launches": Limits')
    shell = Shell(folder, installed(tmp_path, metrics=loose))
    done = shell.asks("from perfguard.measure.metrics import all_limits; all_limits()")
    assert "acme_metrics: declares limits of launches, which another metric has declared" in done.stderr
