"""`perfguard explain` as a user types it, with a program of the profiler's name on PATH that prints what Nsight Compute
printed on an H200 (tests/profiles)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from perfguard import ExitStatus
from perfguard.github.lanes.judge_again import judge_again
from perfguard.judge.lane import Lane
from perfguard.model.records import Word
from perfguard.store.report_file import read_report
from tests.flows.conftest import TEST as TESTS
from tests.flows.conftest import Project
from tests.profiles.test_profilers import RECORDED

# It runs the process that it is given, and writes the recorded launch of that side: PLANT counts the pairs.
NCU = f"""#!{sys.executable}
import os, subprocess, sys

arguments = sys.argv[1:]
log = ""
while arguments[0].startswith("--"):
    option = arguments.pop(0)
    value = "" if option == "--csv" else arguments.pop(0)
    assert option != "--clock-control" or value == "none", value
    log = value if option == "--log-file" else log
status = 0
with open(log, "w") as file:
    file.write("==PROF== Connected to process 17\\n")
    if message := os.environ.get("NCU_SAYS"):
        file.write(message)
    else:
        status = subprocess.run(arguments).returncode
        header, units, *rows = open({str(RECORDED)!r}).read().splitlines()
        side = int(os.path.basename(os.getcwd()) != "base")
        file.write("\\n".join((header, units, rows[2 * int(os.environ["PLANT"]) + side], "")))
    file.write("==PROF== Disconnected from process 17\\n")
sys.exit(status)
"""
TEST, CASE = "test_suite.py::test_double[64]", "double[64]/forward"


@dataclass
class Desk:
    """A repository on a simulated H200 with a slower working tree, and a folder on PATH for profilers."""

    project: Project
    programs: Path

    def install(self, text: str = NCU, name: str = "ncu") -> None:
        program = self.programs / name
        program.write_text(text)
        program.chmod(0o755)

    def start(self, *words: str, folder: str = "", **variables: str) -> subprocess.Popen[str]:
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        return subprocess.Popen(
            [sys.executable, "-m", "perfguard", *words], cwd=self.project.path / folder, text=True,
            env=os.environ | {"PATH": path, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def typed(self, *words: str, folder: str = "", **variables: str) -> tuple[int, list[str], str]:
        """Status, lines of output, and errors of one `perfguard` command."""
        with self.start(*words, folder=folder, **variables) as process:
            output, errors = process.communicate(timeout=300)
        assert "Traceback" not in errors
        assert "perfguard-pairs" not in self.project.git("worktree", "list")
        return process.returncode, output.splitlines(), errors


@pytest.fixture
def desk(project: Project, tmp_path: Path) -> Desk:
    programs = tmp_path / "programs"
    programs.mkdir()
    project.configure(device="fake:nvidia-h200")
    project.commit()
    project.kernel(us=60.0)
    return Desk(project, programs)


@pytest.mark.parametrize(
    ("plant", "first"),
    [(0, "dram_read 256 MiB -> 512 MiB (+100.0 %)"), (1, "local_accesses 0 -> 3833856"), (2, "occupancy 24 % -> 12 %")],
)
def test_the_planted_cause_comes_first(plant: int, first: str, desk: Desk) -> None:
    desk.install()
    status, lines, errors = desk.typed("explain", TEST, "HEAD", PLANT=str(plant))
    assert status == ExitStatus.PASSED, errors
    assert lines[0] == CASE
    assert lines[1].startswith(f"    counters: {first}, "), lines


def test_a_run_explains_what_it_finds_slower(desk: Desk) -> None:
    """In its own words, in those of whoever judges the report again, and of the command without a BASE."""
    desk.install()
    status, lines, errors = desk.typed("compare", "HEAD", "--", "-k", "64", PLANT="1")
    assert status == ExitStatus.REGRESSED, errors
    (because,) = (line for line in lines if line.startswith("    because: "))
    assert because.startswith("    because:   local_accesses 0 -> 3833856, occupancy 91 % -> 47 %, dram_written ")
    report = read_report(next(desk.project.path.glob(".perfguard/compare/report-*.json")))
    (result,) = judge_again(report, Lane(report.hardware, report.toolchain, [], report.base)).results
    (slower,) = (verdict for verdict in result.verdicts if verdict.word is Word.SLOWER)
    assert "because: local_accesses 0 -> 3833856, " in slower.reason
    desk.project.commit()  # What the report compared stays the question.
    status, lines, errors = desk.typed("explain", CASE, PLANT="1")
    assert status == ExitStatus.PASSED, errors
    assert lines[0].startswith(f"SLOWER  {CASE}  device_time_us ")
    assert lines[1].startswith("    counters: local_accesses 0 -> 3833856, ")
    assert lines[2] == f"    kernel: plant_rows 127.7 µs -> 197.5 µs in ncu, from {report.base.commit[:12]}"


@pytest.mark.parametrize(
    ("says", "counted"),
    # What a profiler that fails is told as is tried below, case by case.
    [("", 3), pytest.param("==ERROR== Unknown Error on device 0.\n", 1, marks=pytest.mark.nightly)],
)
def test_a_run_explains_one_case_of_three_tests_at_most_and_ends_with_the_first_failure(
    says: str, counted: int, desk: Desk
) -> None:
    desk.install()
    head, test = TESTS.split("@pytest", 1)
    again = [f"@pytest{test}".replace("test_double", f"test_double_{name}") for name in "abcd"]
    desk.project.test_file("\n".join([head, *again]))
    desk.project.kernel()
    desk.project.commit()
    desk.project.kernel(us=60.0)
    status, lines, errors = desk.typed("compare", "HEAD", PLANT="0", NCU_SAYS=says)
    assert status == ExitStatus.REGRESSED, errors
    asked = [line.split()[5] for line in lines if line.startswith("perfguard: counting with ncu why ")]
    assert len({name.partition("[")[0] for name in asked}) == len(asked) == counted
    told = "perfguard: not explained by hardware counters: ncu, the base: Unknown Error on device 0."
    assert lines.count(told) == bool(says)
    assert any(line.startswith("8 SLOWER; ") for line in lines)


def test_without_a_profiler_it_says_what_is_known_and_how_to_know_more(desk: Desk) -> None:
    desk.project.kernel(us=60.0, launches=2)
    status, lines, errors = desk.typed("compare", "HEAD", "--", "-k", "64")
    assert status == ExitStatus.REGRESSED, errors
    told = (
        "hardware counters would tell more of what is slower: install Nsight Compute, of the CUDA toolkit, and put ncu"
    )
    assert [told in line for line in lines].count(True) == 1
    status, lines, errors = desk.typed("explain", "double[64]")
    assert status == ExitStatus.PASSED, errors
    assert lines[1].startswith("    because: launches 1 -> 2 (+100.0 %), kernels + copy_kernel")
    assert lines[-1].endswith(
        " hardware counters cannot be read; install Nsight Compute, of the CUDA toolkit, and put ncu on PATH"
    )


REFUSED = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters\n"
ALLOWED = "sets `options nvidia NVreg_RestrictProfilingToAdminUsers=0` in /etc/modprobe.d and loads the driver again"
UNKNOWN = "==ERROR== Failed to initialize the profiler: LibraryNotLoaded\n"


@pytest.mark.parametrize(
    ("words", "variables", "told"),
    [
        ([TEST, "HEAD"], {"NCU_SAYS": REFUSED}, ["ncu, the base: ERR_NVGPUCTRPERM: ", ALLOWED]),
        ([TEST, "HEAD"], {"NCU_SAYS": UNKNOWN}, ["ncu, the base: Failed to initialize the profiler: LibraryNotLoaded"]),
        (["test_suite.py::test_double[65]", "HEAD"], {}, ["ncu, the base: the test does not make this call there"]),
        (["double[65]"], {}, ["double[65]: no such case in the reports of ", "name one of a report, or the node id"]),
        (["nothing.py::test_double"], {}, ["nothing.py::test_double: no such case in the reports of "]),
        ([TEST, "nowhere"], {}, ["nowhere: no branch, tag or commit of ", "fetch it, or name another"]),
    ],
)
def test_an_error_is_one_clear_line(words: list[str], variables: dict[str, str], told: list[str], desk: Desk) -> None:
    desk.install()
    status, lines, errors = desk.typed("explain", *words, PLANT="0", **variables)
    assert (status, lines) == (ExitStatus.USAGE_ERROR, [])
    last = errors.splitlines()[-1]
    assert last.startswith(f"perfguard: {told[0]}"), last
    assert all(text in last for text in told), last


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"session_minutes": 0.001},
            "ncu, the base: the base took longer than 0.001 minutes ([tool.perfguard] session_",
        ),
        ({"device": "fake"}, "Fake GPU: hardware counters cannot be read; run it where there is an NVIDIA or AMD GPU"),
    ],
)
def test_too_little_time_and_no_gpu(settings: dict[str, object], told: str, desk: Desk) -> None:
    desk.install()
    desk.project.configure(**settings)
    status, lines, errors = desk.typed("explain", TEST, "HEAD", PLANT="0")
    assert (status, lines) == (ExitStatus.USAGE_ERROR, [])
    assert errors.splitlines()[-1].startswith(f"perfguard: {told}"), errors


def test_ctrl_c_leaves_nothing(desk: Desk, tmp_path: Path) -> None:
    """The profiler, and what it started, end as well."""
    begun = tmp_path / "begun"
    lines = ["import os, time", f"open({str(begun)!r}, 'w').write(str(os.getpid()))", "time.sleep(600)"]
    desk.install("\n".join([f"#!{sys.executable}", *lines, ""]))
    with desk.start("explain", TEST, "HEAD") as process:
        while not (begun.exists() and begun.read_text()):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=120)[0] == ""
    assert process.returncode == ExitStatus.INTERRUPTED
    assert not Path("/proc", begun.read_text()).exists()
    assert "perfguard-pairs" not in desk.project.git("worktree", "list")


def test_the_same_code_has_nothing_to_explain(desk: Desk) -> None:
    desk.install()
    desk.project.commit()
    status, _, errors = desk.typed("explain", TEST)
    assert status == ExitStatus.USAGE_ERROR
    assert errors == "perfguard: main: the working tree has the same code; name an earlier commit\n"


# A run of the process, and a file of its own, for each group of counters, as ROCm documents it.
ROCPROF = f"""#!{sys.executable}
import os, subprocess, sys

arguments = sys.argv[1:]
options, arguments = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
folder, groups = (options[options.index(name) + 1] for name in ("--output-directory", "--input"))
at_base = os.path.basename(os.getcwd()) == "base"
values = dict(FETCH_SIZE=1000 if at_base else 3000, WRITE_SIZE=1000, L2CacheHit=80 if at_base else 40)
for number, group in enumerate(open(groups).read().splitlines(), 1):
    status = subprocess.run(arguments).returncode
    os.makedirs(f"{{folder}}/pass_{{number}}/host")
    with open(f"{{folder}}/pass_{{number}}/host/17_counter_collection.csv", "w") as file:
        file.write('"Dispatch_Id","Kernel_Name","Counter_Name","Counter_Value","Start_Timestamp","End_Timestamp"\\n')
        for name in group.removeprefix("pmc: ").split():
            end = 11000 if at_base else 21000
            file.write(f'1,"rows_kernel(float*)","{{name}}",{{values.get(name, 50)}},1000,{{end}}\\n')
sys.exit(status)
"""


def test_an_amd_gpu_has_a_profiler_of_its_own(desk: Desk) -> None:
    desk.install(ROCPROF, "rocprofv3")
    desk.install()  # It is not asked.
    desk.project.configure(device="fake:amd-instinct-mi300x")
    status, lines, errors = desk.typed("explain", TEST, "HEAD")
    assert status == ExitStatus.PASSED, errors
    assert lines[1] == "    counters: dram_read 1000 KiB -> 2.93 MiB (+200.0 %), l2_hits 80 % -> 40 %"
    assert lines[2].startswith("    kernel: rows_kernel(float*) 10 µs -> 20 µs in rocprofv3, from ")


GRADIENTS = """
import torch
import kernel
from perfguard.testing import fake

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        fake.launch("forward_kernel")
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        fake.launch("backward_kernel", us=kernel.US)
        return 2 * gradient

def test_double(perfguard):
    x = torch.randn(64, 16, device=perfguard.device, requires_grad=True)
    perfguard(Double.apply, x, reference=lambda x: 2 * x)
"""


def test_the_worst_pass_of_a_test_is_explained_from_any_folder(desk: Desk) -> None:
    desk.install()
    inside = desk.project.path / "tests"
    inside.mkdir()
    (inside / "test_gradients.py").write_text(GRADIENTS)
    (desk.project.path / "kernel.py").write_text("US = 50.0\n")
    desk.project.commit()
    (desk.project.path / "kernel.py").write_text("US = 60.0\n")
    status, _, errors = desk.typed("compare", "HEAD", "--", "tests", PLANT="0", NCU_SAYS="==ERROR== busy\n")
    assert status == ExitStatus.REGRESSED, errors
    status, lines, errors = desk.typed("explain", "test_gradients.py::test_double", folder="tests", PLANT="0")
    assert status == ExitStatus.PASSED, errors
    assert lines[0].startswith("SLOWER  double/backward  device_time_us ")
    assert lines[1].startswith("    counters: dram_read 256 MiB -> 512 MiB (+100.0 %), ")
