"""Tests without the fixture, observed as a stranger would: one command in a repository of which no line is changed."""

from __future__ import annotations

import html
import importlib.util
import re

import pytest

from benchmarks.planting import Edit, planted_in
from perfguard import ExitStatus
from perfguard.model.records import Report, Word
from perfguard.render.html import render_html
from perfguard.render.markdown import render_markdown
from perfguard.render.overview import LaneView, Overview
from perfguard.store.report_file import read_report
from tests.flows.conftest import Project

LIBRARY = """
import torch

KEPT = []


def scale(x):
    y = x * 2
    return y + 1


def power(x):
    return (x * x).sin()


@torch.compile(backend="eager", dynamic=False)
def compiled(x, name):
    return x.cos() + len(name)
"""

TESTS = """
import random

import pytest
import torch

import library


@pytest.fixture
def x():
    return torch.ones(1000)  # outside of what is observed


@pytest.mark.parametrize("n", [3, 4])
def test_scale(n):
    x = torch.ones(n)
    assert torch.equal(library.scale(x), 2 * x + 1)


def test_power():
    x = torch.ones(5, requires_grad=True)
    library.power(x).sum().backward()
    assert x.grad.sum() > 0


@pytest.mark.parametrize("name", ["a", "bc"])
def test_compiled(x, name):
    torch.compiler.reset()
    for _ in range(2):
        library.compiled(x, name)


def test_varies():
    for _ in range(random.SystemRandom().randint(1, 1000)):
        torch.ones(3)


def test_fails():
    assert torch.ones(1) == 2


def test_plain():
    assert 1 + 1 == 2


class TestGroup:
    def test_inside(self, x):
        library.scale(x)

    @pytest.mark.skip(reason="not today")
    def test_skipped(self):
        raise AssertionError
"""

# What is planted -> what is named: the line, the metric and the test.
PLANTED = {
    "copy": ("    y = x * 2\n", "    y = x.clone() * 2\n", "library.py:8 in scale", "copies", "scale[3]"),
    "saved tensor": (
        "    return (x * x).sin()", "    y = x * x\n    return (y * y.detach()).sqrt().sin()",
        "library.py:13 in power", "saved_bytes", "power",
    ),
    "host read": (
        "    return (x * x).sin()", "    y = x * x\n    y.max().item()\n    return y.sin()",
        "library.py:14 in power", "host_reads", "power",
    ),
    "graph break": (
        "    return x.cos() + len(name)", "    y = x.cos()\n    print(end='')\n    return y + len(name)",
        "library.py:19 in compiled", "graph_breaks", "compiled[a]",
    ),
    "recompilation": (
        "    return x.cos() + len(name)", "    KEPT.append(name)\n    return x.cos() + len(KEPT)",
        "library.py:16 in compiled", "recompiles", "compiled[a]",
    ),
    "leak": (
        "    return y + 1", "    KEPT.append(y)\n    return y + 1",
        "library.py:8 in scale", "residue_bytes", "scale[3]",
    ),
}  # fmt: skip


@pytest.fixture
def library(project: Project) -> Project:
    """A stranger's repository, on the CPU."""
    (project.path / "test_suite.py").unlink()
    (project.path / "kernel.py").unlink()
    project.configure(device="cpu", targets=[])
    (project.path / "library.py").write_text(LIBRARY)
    (project.path / "test_library.py").write_text(TESTS)
    project.commit()
    return project


def observe(project: Project, *arguments: str) -> pytest.RunResult:
    return project.guard("--perfguard-observe", *arguments)


def baseline(project: Project) -> str:
    return (project.path / "baselines" / "cpu" / "test_library.yaml").read_text()


def test_each_planted_change_is_named_with_its_line_and_its_test(library: Project) -> None:
    """Recorded in one more process; then quiet; then one change after another: each fails the tests that do more."""
    result = observe(library, "--perfguard-update")
    assert result.ret == ExitStatus.TESTS_FAILED  # a test of theirs fails, as ever
    result.stdout.fnmatch_lines(["perfguard: fresh process: 7 tests"])
    result.stdout.fnmatch_lines(["*1 fact of 1 test, not the same in all processes: stored as unstable, *varies/test"])
    written = baseline(library)
    assert set(re.findall(r"^  (\S+)/test:$", written, re.MULTILINE)) == {
        "scale[3]", "scale[4]", "power", "compiled[a]", "compiled[bc]", "varies", "TestGroup.inside",
    }  # fmt: skip
    assert "operators: unstable" in written
    assert "aten.ones: 1" not in written.partition("TestGroup.inside/test:")[2].partition("compiled")[0]

    for _ in range(2):
        quiet = observe(library, "--deselect=test_library.py::test_fails", "-p", "no:cacheprovider")
        assert quiet.ret == ExitStatus.PASSED
        quiet.stdout.fnmatch_lines(["7 PASS; *"])

    for name, (before, after, line, metric, test) in PLANTED.items():
        with planted_in(library.path, Edit("library.py", before, after)):
            result = observe(library, "--deselect=test_library.py::test_fails")
        assert result.ret == ExitStatus.REGRESSED, name
        outcomes = result.parseoutcomes()
        assert outcomes["failed"] >= 1, name
        assert outcomes["passed"] + outcomes["failed"] == 8, name
        said = result.stdout.str()
        found = [part for part in said.split("CHANGED  ")[1:] if part.startswith(line)]
        assert found, f"{name}: {line} is not named in\n{said}"
        assert metric in found[0], name
        assert test in found[0], name


def test_what_is_observed_by_path_mark_or_setting(library: Project) -> None:
    """One command observes all; a path, a mark and a setting choose; a test with the fixture stays guarded."""
    (library.path / "other").mkdir()
    (library.path / "other" / "test_other.py").write_text(
        "import pytest, torch\n"
        "def test_seen(): torch.ones(3)\n"
        "@pytest.mark.perfguard\ndef test_marked(): torch.ones(3)\n"
        "def test_guarded(perfguard): perfguard(torch.neg, torch.ones(3), reference=torch.neg)\n"
    )
    other = "other/test_other.py"
    assert library.guard(other).ret == ExitStatus.PASSED
    assert set(cpu_words(library)) == {"marked/test", "guarded/forward"}
    assert library.guard("--perfguard-observe=other", other, "test_library.py", "-k", "not fails").ret == 0
    assert set(cpu_words(library)) == {"marked/test", "seen/test", "guarded/forward"}
    library.configure(observe=["other"])
    assert library.guard(other, "test_library.py", "-k", "not fails").ret == 0
    assert set(cpu_words(library)) == {"marked/test", "seen/test", "guarded/forward"}
    recorded = library.guard("--perfguard-update=all", other)
    recorded.stdout.fnmatch_lines(["perfguard: fresh process: 3 tests"])  # observed and guarded ones in one
    library.guard("--perfguard-lane=cpu", other)  # which needs no base for times
    assert {word for words in cpu_words(library).values() for word in words} <= {"PASS", "UNCHANGED"}
    result = library.guard("--perfguard-observe=nowhere", other)
    assert result.ret == ExitStatus.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --perfguard-observe: */nowhere: no such path; name folders and files*"])
    result = library.run("--perfguard-observe", other)
    assert result.ret == ExitStatus.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --perfguard-observe: goes with --perfguard; add it or leave both out"])


def test_a_path_behind_the_bare_option_is_what_is_collected(library: Project) -> None:
    """Not the option's own: without a path pytest would load the conftest of `testpaths`, which may need what is not
    there."""
    (library.path / "broken").mkdir()
    (library.path / "broken" / "conftest.py").write_text("import missing_module")
    result = observe(library, "test_library.py::test_power", "-o", "testpaths=broken")
    assert result.ret == ExitStatus.PASSED
    result.assert_outcomes(passed=1)


def test_a_repository_that_is_reached_by_a_link_is_observed(library: Project) -> None:
    """The setting's paths and the tests' paths may differ in how they get there."""
    library.configure(observe=True)
    link = library.path.parent / f"{library.path.name}-link"
    link.symlink_to(library.path)
    assert library.guard(f"{link}/test_library.py", f"--rootdir={link}", "-k", "power").ret == ExitStatus.PASSED
    assert set(cpu_words(library)) == {"power/test"}


@pytest.mark.parametrize("variables", [{"RANK": ""}, {"RANK": "one"}, {"RANK": "1"}, {"RANK": "1", "WORLD_SIZE": "2"}])
def test_a_stray_rank_is_not_torchrun_s(
    library: Project, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    """torchrun sets more. Elsewhere a run neither ends for such a variable nor falls silent."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    result = observe(library, "test_library.py", "-k", "power")
    assert result.ret == ExitStatus.PASSED
    result.stdout.fnmatch_lines(["1 NEW; *"])


def test_an_edited_test_is_another_measurement(library: Project) -> None:
    """A new line in a test is no regression of the library; neither is a new decorator, or a line above it."""
    chosen = "test_library.py::test_power"
    assert observe(library, chosen, "--perfguard-update=new").ret == ExitStatus.PASSED
    edited = TESTS.replace("    assert x.grad.sum() > 0", "    assert x.grad.sum() > 0\n    x.clone()")
    (library.path / "test_library.py").write_text(edited)
    assert observe(library, chosen).ret == ExitStatus.PASSED
    assert cpu_words(library)["power/test"] == {"METHOD_CHANGED"}
    assert "the test was edited since it was recorded" in observe(library, "-v", chosen).stdout.str()
    moved = TESTS.replace("def test_power", "# a line\n@pytest.mark.filterwarnings('ignore')\ndef test_power")
    (library.path / "test_library.py").write_text(moved)
    assert observe(library, chosen).ret == ExitStatus.PASSED
    assert cpu_words(library)["power/test"] == {"PASS"}


def test_without_torch_nothing_is_imported_and_the_run_says_so(library: Project, real_processes: None) -> None:
    """A suite that uses no torch costs nothing, and a green run would be a lie."""
    (library.path / "test_plain.py").write_text(
        "import sys\n"
        "def test_a(): assert 'torch' not in sys.modules\n"
        "def test_b(): assert 'triton' not in sys.modules\n"
    )
    result = observe(library, "test_plain.py")
    assert result.ret == ExitStatus.NOTHING_MEASURED
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["perfguard: observed 2 tests; none loaded torch, so there was nothing to read"])


def test_a_run_of_tests_that_call_no_operator_says_so(library: Project) -> None:
    """Their modules may import torch. Its status is 12, and nothing else in the output would tell why."""
    result = observe(library, "test_library.py::test_plain")
    assert result.ret == ExitStatus.NOTHING_MEASURED
    result.stdout.fnmatch_lines(["perfguard: observed 1 test; none called an operator of torch*nothing to read"])


def test_torch_that_a_test_imports_itself_is_seen_from_there(library: Project, real_processes: None) -> None:
    (library.path / "test_late.py").write_text("def test_late():\n    import torch\n    torch.ones(3).clone()\n")
    assert observe(library, "test_late.py").ret == ExitStatus.PASSED
    (result,) = library.report(cpu_slug(library))["results"]
    readings = {reading["metric"]: reading["value"] for reading in result["readings"]}
    assert readings["operators"] == 2
    assert readings["copies"] == 1


def test_on_the_simulated_gpu_one_kernel_is_told_once(project: Project) -> None:
    """Launches and memory of a kernel in several tests: one finding, in the terminal and in the report's comment."""
    test = (
        "import pytest, torch\nimport kernel\n"
        "@pytest.mark.parametrize('n', [8, 16, 24])\ndef test_double(n):\n    kernel.double(torch.ones(n))\n"
    )
    project.test_file(test)
    project.commit()
    assert observe(project, "--perfguard-update").ret == ExitStatus.PASSED
    assert observe(project).ret == ExitStatus.PASSED
    project.kernel(launches=2, allocate=1 << 21)
    result = observe(project)
    assert result.ret == ExitStatus.REGRESSED
    (line,) = [line for line in result.outlines if line.startswith("CHANGED")]
    assert line.startswith("CHANGED  copy_kernel, in 3 cases: launches 1 -> 2 (+100.0 %), ")
    assert "peak_tensor_bytes 1 MiB -> 2 MiB" in line
    result.stdout.fnmatch_lines(["*worst:*; also double[[]16]/test, double[[]24]/test"])


TIMED = """
import torch
from perfguard.testing import fake


def double(x):
    fake.launch("double_kernel", us={us}, grid="{grid}")
    return x * 2


def negative(x):
    fake.launch("negative_kernel", us=30.0, grid="(2,)")
    return -x
"""

TIMED_TESTS = """
import pytest
import torch

import kernel

RAN = []


@pytest.mark.parametrize("n", [8, 16])
def test_both(n):
    kernel.negative(kernel.double(torch.ones(n)))


def test_once():
    RAN.append(kernel.double(torch.ones(8)))
    assert len(RAN) == 1  # a second run in one process fails


def test_facts_first():
    x = torch.ones(8)
    if len(RAN) > 1:  # a test ran again before this one was observed
        x.clone()


def test_fails():
    kernel.double(torch.ones(8))
    assert not RAN
"""


@pytest.mark.nightly  # eight runs, three with pairs; its parts: test_asking.py, tests/judge/test_kernel_times.py
def test_the_time_of_a_changed_kernel_is_judged_beside_the_base(project: Project) -> None:
    """Recorded and shown; then slower, and accepted, and as fast as before; what cannot be paired says why."""

    def kernels(us: float, grid: str) -> None:
        (project.path / "kernel.py").write_text(TIMED.format(us=us, grid=grid))

    def words(report: Report) -> dict[str, Word]:
        return {
            result.case.name: verdict.word
            for result in report.results
            for verdict in result.verdicts
            if verdict.metric == "kernel_time_us[double_kernel]"
        }

    kernels(50.0, "(4,)")
    project.test_file(TIMED_TESTS)
    project.commit()
    passing = "--deselect=test_suite.py::test_fails"
    assert observe(project, passing, "--perfguard-update").ret == ExitStatus.PASSED
    times = r"kernel_time_us: \{double_kernel: [45]\d[.\d]*, negative_kernel: [23]\d[.\d]*\}"
    assert len(re.findall(times, project.baseline.read_text())) == 2  # `once` cannot run twice
    assert "unstable" not in project.baseline.read_text()
    project.commit()

    kernels(100.0, "(8,)")
    result = observe(project)
    assert result.ret == ExitStatus.REGRESSED
    result.assert_outcomes(passed=2, failed=3)  # two had passed, and pairs called them slower
    (line,) = [line for line in result.outlines if line.startswith("SLOWER")]
    change = r"[45]\d\S* µs -> \d+\S* µs \(\+(9\d|10\d)\S* %, 95 % \+.* to \+.*\)"
    assert re.fullmatch(r"SLOWER  double_kernel, in 2 cases: grids double_kernel .*", line)
    assert re.search(rf"\n    worst:     both\[\d+\]/test  kernel_time_us {change}; also both", result.stdout.str())
    why = "UNPAIRED: the test does not launch it at the base, or cannot run twice"
    result.stdout.fnmatch_lines([f"UNRESOLVED  1 case (*): {why}"])
    slower = project.read()
    assert words(slower) == {"both[8]": Word.SLOWER, "both[16]": Word.SLOWER, "once": Word.UNRESOLVED}
    overview = Overview([LaneView("fake-gpu", slower)])
    comment = html.unescape(render_markdown(overview).replace("<wbr>", ""))
    row = r"<code>double_kernel</code> \| <code>grids double_kernel .*</code> \| 2 SLOWER \| "
    assert re.search(rf"{row}<code>both\[\d+\]/test</code> <code>kernel_time_us</code> [45]\d", comment)
    assert re.search(r"kernel_time_us\[double_kernel\].{1,200} % slower \(", render_html(overview))

    kernels(50.0, "(8,)")
    assert observe(project, passing).ret == ExitStatus.PASSED
    assert words(project.read()) == {"both[8]": Word.PASS, "both[16]": Word.PASS, "once": Word.UNRESOLVED}

    project.configure(pair_minutes=0)
    kernels(100.0, "(8,)")
    result = observe(project, passing)
    assert result.ret == ExitStatus.PASSED
    result.stdout.fnmatch_lines(["UNRESOLVED  3 cases (*): UNPAIRED: *pair_minutes is 0"])
    update = "--perfguard-update=slower,changed"
    assert observe(project, passing, update, "--perfguard-reason=wider").ret == ExitStatus.PASSED
    assert project.baseline.read_text().count("reason: wider") == 1  # of the recording that both cases share
    assert observe(project, passing).ret == ExitStatus.PASSED
    assert words(project.read()) == {}  # as it is recorded now


def test_a_recorded_test_that_is_skipped_now_keeps_its_name(library: Project) -> None:
    test = "import pytest, torch\ndef test_it():\n    {}torch.ones(3) + 1\n"
    (library.path / "test_library.py").write_text(test.format(""))
    assert observe(library, "--perfguard-update=new").ret == ExitStatus.PASSED
    (library.path / "test_library.py").write_text(test.format("pytest.skip('not today')\n    "))
    observe(library).stdout.fnmatch_lines(
        ["UNRESOLVED  1 case (*): has a baseline, but its test was skipped: not today"]
    )
    (report,) = (library.path / ".perfguard").glob("report-*.json")
    assert [result.case.key for result in read_report(report).results] == ["it/test"]


KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["size"])
def double_kernel(x_ptr, out_ptr, size, BLOCK: tl.constexpr = 64):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < size)
    tl.store(out_ptr + at, x * 2, mask=at < size)


def double(x):
    out = torch.empty_like(x)
    double_kernel[lambda given: (x.numel() // given["BLOCK"],)](x, out, x.numel())
    return out
"""


# Not imported here: pytester unloads what a test imports, and Triton cannot be loaded a second time.
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
@pytest.mark.nightly  # starts Python itself, and compiles, four times
def test_a_kernel_in_the_interpreter_is_compiled_for_its_targets(
    library: Project, real_processes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the compiler makes of a kernel that is not the base's is told once, for all tests that launch it."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    library.configure(targets=["sm_90"])
    (library.path / "double.py").write_text(KERNEL)
    (library.path / "test_double.py").write_text(
        "import pytest, torch, double\n"
        "@pytest.mark.parametrize('n', [64, 128])\n"
        "def test_double(n):\n    x = torch.ones(n)\n    assert torch.equal(double.double(x), x + x)\n"
    )
    library.commit()
    assert observe(library, "test_double.py", "--perfguard-update=new").ret == ExitStatus.PASSED
    written = (library.path / "baselines" / "cpu" / "test_double.yaml").read_text()
    assert re.search(r"code: \{double_kernel: \w+-\w+\}", written)
    library.commit()
    (library.path / "double.py").write_text(
        KERNEL.replace("x * 2", "(x.to(tl.float64) * 2.5 - x * 0.5).to(tl.float32)")
    )
    result = observe(library, "test_double.py")
    assert result.ret == ExitStatus.REGRESSED
    (line,) = [line for line in result.outlines if line.startswith("CHANGED")]
    assert re.match(r"CHANGED  double_kernel \(double.py:7\), in 2 cases: fp64 on sm_90 0 -> \d+", line), line


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_triton_that_a_test_imports_itself_is_seen_from_there(library: Project, real_processes: None) -> None:
    """The launch is one entry, as in a process that has Triton loaded, whichever test of a run is the first."""
    library.configure(targets=[])
    (library.path / "double.py").write_text(KERNEL)
    (library.path / "test_late.py").write_text(
        "import torch\n"
        "def test_late():\n    from double import double\n    assert double(torch.ones(64)).sum() == 128\n"
    )
    assert observe(library, "test_late.py").ret == ExitStatus.PASSED
    (result,) = library.report(cpu_slug(library))["results"]
    readings = {reading["metric"]: reading["value"] for reading in result["readings"]}
    assert (readings["launches"], readings["kernel_launches"]) == (1, {"double_kernel": 1})
    assert "copies" not in readings or readings["copies"] == 0


# What an observer could break: tests that pass only if they notice nothing of it.
NOTICING = """
import gc
import weakref

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.jit import trace

TABLE = {torch.Tensor.tolist: lambda x: "mine"}


class Subclass(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return TABLE[func](*args) if func in TABLE else super().__torch_function__(func, types, args, kwargs or {})


class Cycle:
    def __init__(self):
        self.me = self


@pytest.fixture
def held():
    return [Cycle()]


def test_transforms():
    f = torch.func.vmap(torch.func.grad(lambda x: (x.sin() * x).sum()))
    assert f(torch.ones(3, 4)).shape == (3, 4)


def test_symbolic():
    x = torch.ones(3, requires_grad=True)
    assert make_fx(lambda x: (x.sin() * x).sum(), tracing_mode="symbolic")(x)(x) > 0


def test_fakes():
    x = torch.ones(3, device="meta", requires_grad=True)
    (x * x).sum().backward()


def test_traced():
    assert str(trace(lambda x: x.sin() + 1, torch.ones(3)).graph).count("aten::sin") == 1


def test_table():
    assert torch.ones(2).as_subclass(Subclass).tolist() == "mine"
    assert torch.Tensor.numpy.__name__ == "numpy"


def test_collected(held):
    assert any(isinstance(each, Cycle) for each in gc.get_objects())
    cycle = weakref.ref(held.pop())
    gc.collect()
    assert cycle() is None


def test_replaced():
    torch.Tensor.tolist = lambda self: "replaced"


def test_replaced_before():
    assert torch.ones(2).tolist() == "replaced"
    del torch.Tensor.tolist


def test_folder_gone(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    (tmp_path / "folder").rmdir()
    torch.ones(2).clone()
"""


def test_nothing_of_it_is_noticed(library: Project, real_processes: None) -> None:
    """Tests that watch the collector, torch's functions and its tracers pass, and each is read."""
    (library.path / "test_noticing.py").write_text(NOTICING)
    result = observe(library, "test_noticing.py")
    assert result.ret == ExitStatus.PASSED
    result.assert_outcomes(passed=9)
    read = {result["case"]["name"]: result["readings"] for result in library.report(cpu_slug(library))["results"]}
    assert "fakes" not in read  # nothing on the meta device does any work
    assert {"transforms", "symbolic", "traced", "table", "replaced_before", "folder_gone"} <= set(read)
    values = {reading["metric"]: reading["value"] for reading in read["transforms"]}
    assert values["saved_bytes"] > 0


LOGGING = """
import logging

import pytest
import torch

LOG = logging.getLogger(__name__)


def optional(told):
    try:
        import missing_module
    except ImportError as error:
        told(error)


def generator(told):
    optional(told)
    yield 1
    yield 2


@pytest.mark.parametrize("keyword", [False, True])
def test_logged(keyword):
    x = torch.ones(1000)
    optional(lambda error: LOG.warning("without: %s", error, exc_info=keyword))


@pytest.fixture
def steps():
    found = []
    yield found
    assert next(found[0]) == 2


def test_suspended(steps, caplog):
    x = torch.ones(1000)
    steps.append(generator(LOG.exception))
    assert next(steps[0]) == 1
    assert "missing_module" in caplog.text
"""


def test_a_logged_exception_leaves_no_tensors(library: Project) -> None:
    """pytest keeps the log until teardown. An exception in it holds the frames of the test, and they all tensors."""
    (library.path / "test_logging.py").write_text(LOGGING)
    assert observe(library, "test_logging.py").ret == ExitStatus.PASSED
    results = library.report(cpu_slug(library))["results"]
    values = [{each["metric"]: each["value"] for each in result["readings"]} for result in results]
    assert [each["residue_bytes"] for each in values] == [0, 0, 0]
    assert [each["operators"] for each in values] == [1, 1, 1]


def test_a_test_that_cannot_be_read_is_told(library: Project) -> None:
    """Two tests of one name: both pass, and what cannot be read fails in the end."""
    (library.path / "test_twice.py").write_text("import torch\ndef test_a(): torch.ones(3)\ndef a(): torch.ones(4)\n")
    result = observe(library, "test_twice.py", "-o", "python_functions=test_a a")
    assert result.ret == ExitStatus.TESTS_FAILED
    result.assert_outcomes(passed=1, failed=1)  # as the run's status says
    result.stdout.fnmatch_lines(["BROKEN  a/test *its readings failed: *has the same name, a/test; rename one of them"])


def cpu_slug(project: Project) -> str:
    (path,) = (project.path / ".perfguard").glob("report-cpu-*.json")
    return path.stem.removeprefix("report-")


def cpu_words(project: Project) -> dict[str, set[str]]:
    return {
        f"{result['case']['name']}/{result['case']['pass']}": {each["word"] for each in result["verdicts"]}
        - ({"PASS"} if any(each["word"] != "PASS" for each in result["verdicts"]) else set())
        for result in project.report(cpu_slug(project))["results"]
    }
