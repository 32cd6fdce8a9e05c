"""The house rules of the design, held by tests: budgets of lines, floors, the torch line, public names, options."""

from __future__ import annotations

import ast
import functools
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import perfguard
import perfguard.plugin

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "perfguard"
KERNELS = ROOT / "kernels"

# The most lines that a room may have. Whoever shrinks a room lowers its budget. Where a room has to grow, a further row
# of the same files raises it by the row's lines, and says why.
BUDGETS = [
    # files, lines, why they were raised
    ("perfguard/*.py", 350, ""),
    ("perfguard/*.py", 50, "--perfguard-dirty: an update names code that no commit holds"),
    ("perfguard/_compat/**/*.py", 850, ""),
    (
        "perfguard/_compat/**/*.py",
        150,
        "what Triton compiles for absent chips, and its first IR, with 3.6 to 3.9",
    ),
    ("perfguard/_compat/**/*.py", 100, "the names of Triton's interpreter that are mended, with Triton 3.6 to 3.9"),
    ("perfguard/_compat/**/*.py", 50, "fake implementations of operators, and who registered them"),
    ("perfguard/_compat/**/*.py", 50, "what a tuner tries is not an observed test's: no edit waits for pairs of it"),
    ("perfguard/check/**/*.py", 4_450, ""),
    (
        "perfguard/check/**/*.py",
        250,
        "faults of derived inputs are asked of the base; objects of users are not",
    ),
    ("perfguard/check/**/*.py", 300, "kinds take turns within one budget, and go on in the next run"),
    ("perfguard/check/**/*.py", 100, "modules that a reference keeps are widened; NaN where a reference jumps"),
    ("perfguard/check/**/*.py", 50, "strict runs of interpreted kernels: masked lanes, order of programs"),
    (
        "perfguard/check/**/*.py",
        850,
        "inputs that a call or its code asks for: sizes apart, thresholds, options, runs, epsilons, large gradients",
    ),
    (
        "perfguard/check/**/*.py",
        950,
        "what public reports name: state, sequences, modes, dtypes, fakes; frozen inputs and refused dtypes to follow",
    ),
    (
        "perfguard/check/**/*.py",
        450,
        "a kernel nearer to the truth than its reference is not accused; ids follow ends; layouts and sizes to follow",
    ),
    ("perfguard/check/**/*.py", 50, "masks stay masks, and choices among ties are free: false alarms on right code"),
    (
        "perfguard/check/**/*.py",
        150,
        "gradients of parameters that a candidate keeps; who wrote an input, and with what a call raised",
    ),
    ("perfguard/check/**/*.py", 50, "long sums in bfloat16, frozen parameters of a module to follow"),
    ("perfguard/check/**/*.py", 50, "a reference that closes over narrow tensors, or that promotes, accuses nobody"),
    (
        "perfguard/check/**/*.py",
        250,
        "options by name, equal values, tuning, unmarked integers; choices of equal elements are compared as sets",
    ),
    ("perfguard/check/**/*.py", 100, "groups without rows and masks with holes where no test marks them; empty sizes"),
    ("perfguard/check/**/*.py", 50, "kinds that were tried with a code, in another case or run, are not new"),
    (
        "perfguard/check/**/*.py",
        300,
        "ids that follow options, fakes of other options, tables of each sequence; a fourth set of public reports",
    ),
    ("perfguard/check/**/*.py", 50, "sizes of global tensors stay, other options may round: right code was accused"),
    (
        "perfguard/check/**/*.py",
        100,
        "results that follow from state accuse nobody; operators that hide writes, flags beside None, sums of codes",
    ),
    (
        "perfguard/check/**/*.py",
        150,
        "what no test mentions is judged by the base alone; results below a maximum's start, batches of one sequence",
    ),
    ("perfguard/github/**/*.py", 2_350, ""),
    (
        "perfguard/github/**/*.py",
        250,
        "runs have an order, writes are read back, calls end; edits of settings are listed",
    ),
    ("perfguard/github/**/*.py", 600, "perfguard init: settings and workflows that users copied by hand"),
    ("perfguard/github/**/*.py", 200, "judge: the verdict from files, without a network; links to lanes' jobs"),
    ("perfguard/github/**/*.py", 200, "reports are checked against themselves, and limits follow the base"),
    ("perfguard/github/**/*.py", 100, "what earlier runs of CI have tried is fetched, so that a job goes on there"),
    ("perfguard/interpreter/**/*.py", 1_650, "without a GPU it decides, in Triton 3.6 to 3.9: bf16, fp8, races, work"),
    ("perfguard/judge/**/*.py", 2_500, ""),
    ("perfguard/judge/**/*.py", 300, "the base judges what no record can; what tells most leads"),
    ("perfguard/judge/**/*.py", 100, "a case put in front of others accuses nobody; ids that hold addresses"),
    ("perfguard/judge/**/*.py", 50, "times that no commit can judge yet; warps that rise here and fall there"),
    ("perfguard/judge/**/*.py", 50, "a host that is slower as a whole has eight of its times paired, not all"),
    ("perfguard/measure/**/*.py", 10_300, ""),
    ("perfguard/measure/**/*.py", 50, "a kernel with fewer waits, barriers or hints than the base's"),
    ("perfguard/measure/**/*.py", 250, "why a case is slower: counters of two vendors' profilers, of two sides"),
    (
        "perfguard/measure/**/*.py",
        50,
        "what is kept for frozen inputs; autocast; sizes by which kernels are specialised",
    ),
    ("perfguard/model/**/*.py", 1_650, ""),
    ("perfguard/model/**/*.py", 300, "doubts, bases of records, differences that are shown whole, sessions that join"),
    ("perfguard/model/**/*.py", 50, "no process outlives the one that started it, in any room"),
    ("perfguard/model/**/*.py", 50, "the budget of what runs beside a given call"),
    ("perfguard/model/**/*.py", 50, "the ranks of a call: one object in place of conditions in five rooms"),
    ("perfguard/model/**/*.py", 50, "modules that a test imports itself are waited for, torch and Triton alike"),
    ("perfguard/pytest_plugin/**/*.py", 1_700, ""),
    ("perfguard/model/**/*.py", 50, "written files keep links and permissions; folders are tried before a run"),
    ("perfguard/model/**/*.py", 50, "times that no commit can judge yet, modules that a candidate keeps"),
    (
        "perfguard/pytest_plugin/**/*.py",
        100,
        "one error for each odd argument; the last line agrees with the status",
    ),
    ("perfguard/pytest_plugin/**/*.py", 200, "what a run is at, on terminals and in logs"),
    ("perfguard/pytest_plugin/**/*.py", 100, "kernels are interpreted where no GPU is, without being asked"),
    ("perfguard/pytest_plugin/**/*.py", 50, "times of observed kernels, which the session measured before"),
    ("perfguard/ranks/**/*.py", 1_700, ""),
    ("perfguard/pytest_plugin/**/*.py", 50, "an error without words has its line and inputs"),
    ("perfguard/pytest_plugin/**/*.py", 50, "modules whose import needs a GPU are skipped"),
    ("perfguard/render/**/*.py", 2_500, ""),
    ("perfguard/render/**/*.py", 250, "upgrades, kernel by kernel; old faults"),
    ("perfguard/render/**/*.py", 100, "guarded cases with one cause are one finding; times that are only shown"),
    ("perfguard/render/html/page.[chj]*", 350, ""),
    ("perfguard/session/**/*.py", 3_450, ""),
    (
        "perfguard/render/**/*.py",
        550,
        "a row for each cause, in terminal, comment, page and annotations; shown by examples of 3, 40 and 400 findings",
    ),
    ("perfguard/render/**/*.py", 50, "a case's history by commit, beside what it shares of the ceilings"),
    ("perfguard/render/html/page.[chj]*", 50, "causes first; process pairs as dots"),
    ("perfguard/session/**/*.py", 750, "the base of each case's record, its answers, and environments of two sides"),
    (
        "perfguard/session/**/*.py",
        150,
        "worktrees of killed runs are removed; pairs start ahead; what a run does is said meanwhile",
    ),
    ("perfguard/session/**/*.py", 150, "what is remembered of a case between runs; what a pair found, and took"),
    ("perfguard/session/**/*.py", 250, "why a case is slower: both sides under a profiler, by a command and in a run"),
    ("perfguard/session/**/*.py", 200, "the processes of a pair import once: half of what `perfguard compare` costs"),
    ("perfguard/store/**/*.py", 550, ""),
    ("perfguard/store/**/*.py", 150, "a lock; what the comment's job reads at most, said before a run measures"),
    ("perfguard/tensors/**/*.py", 500, ""),
    ("perfguard/tensors/**/*.py", 100, "an input on which torch asserts on a GPU does not take the device from a run"),
    ("perfguard/testing/**/*.py", 500, ""),
    ("kernels/**/*.py", 14_100, ""),
    ("kernels/**/*.py", 800, "RMSNorm and RoPE, also by Liger's names; how DTensors are placed"),
    ("kernels/**/*.py", 300, "block scales of 1x128 and 128x128, MXFP8: reference, kernel, operators, DTensors"),
    ("kernels/**/*.py", 250, "RMSNorm that writes the fp8 codes of its result in the same pass"),
    ("kernels/**/*.py", 50, "DTensors of permuted rows and of a split vocabulary's loss, whose logits may be (..., V)"),
    (
        "kernels/**/*.py",
        1_150,
        "products with block scales and MXFP8, rows padded by expert, and the loss of a split vocabulary",
    ),
    ("tests/**/*.py", 61_500, ""),
    (
        "tests/**/*.py",
        500,
        "what a third set of public reports asked for; right code that was accused; lost waits",
    ),
    ("tests/**/*.py", 150, "calls in modes and with other options, and what is kept for frozen inputs"),
    ("tests/**/*.py", 400, "profilers' outputs, and perfguard explain with programs of their names on PATH"),
    (
        "tests/**/*.py",
        650,
        "products with block scales, padded rows and a split vocabulary: behaviour, guards, two ranks",
    ),
    ("tests/**/*.py", 150, "block scales, MXFP8 and padded groups beside torchao's own, value by value"),
    ("tests/**/*.py", 250, "a fault and a correct twin for each kind that a fourth set of public reports asked for"),
    ("tests/**/*.py", 50, "right code of seven more libraries that was accused, and errors without a next step"),
    ("tests/**/*.py", 350, "a fault and a correct twin for what a fifth set of public reports asked for"),
    ("tests/**/*.py", 150, "a fault and its twin for each input that the base alone judges"),
    ("benchmarks/**/*.py", 9_050, ""),
    ("benchmarks/**/*.py", 1_500, "forty further public reports, each a file of thirty to sixty lines"),
    ("benchmarks/**/*.py", 850, "twenty-four public reports of kinds that the others do not have"),
    ("benchmarks/**/*.py", 1_000, "twenty-eight more, a file of thirty to sixty lines each"),
    ("benchmarks/**/*.py", 750, "twenty more of routing, caches in few bits, optimizers, schemas and costs"),
    ("baselines/**/*.yaml", 7_300, ""),
    ("benchmarks/**/*.py", 1_050, "twenty more, most of them Triton kernels"),
    ("baselines/**/*.yaml", 100, "the work of interpreted kernels"),
    ("baselines/**/*.yaml", 50, "MoE on an H200, with what its kernels compile and start on other inputs"),
    ("baselines/**/*.yaml", 500, "what a call starts on other layouts, sizes and dtypes; RMSNorm and rotary positions"),
    ("baselines/**/*.yaml", 800, "an H200 holds RMSNorm, rotary positions and quantisers of blocks, too"),
    ("baselines/**/*.yaml", 50, "blocks over two H200s"),
    ("baselines/**/*.yaml", 300, "the norm with codes, on the CPU and on an H200"),
    ("baselines/**/*.yaml", 350, "products with block scales, rows padded by expert, the loss of a split vocabulary"),
    ("baselines/**/*.yaml", 200, "block scales and the split vocabulary on an H200"),
    ("baselines/**/*.yaml", 250, "small compiled blocks of every kind on an H200"),
    ("docs/*.json", 3_800, ""),
    ("docs/*.json", 50, "six functions guarded on a busy machine, 31 runs"),
    ("docs/*.json", 100, "every operator beside torch on an H200, a row each"),
    ("docs/*.json", 50, "forty further public reports, a row each"),
    ("docs/*.json", 50, "a fourth set of public reports, a row each"),
    ("docs/*.json", 100, "a fifth set of public reports, a row each, and what a comparison takes"),
]
LARGEST = {PACKAGE: 400, KERNELS: 500}  # lines of one file

# The rooms of the house and their floors. A file imports from its own room and from floors below.
FLOORS = {
    "model": 0,
    "_compat": 1,
    "interpreter": 2,
    "tensors": 2,
    "check": 3,
    "judge": 3,
    "measure": 3,
    "render": 3,
    "store": 3,
    "session": 4,
    "testing": 4,
    "github": 5,
    "pytest_plugin": 5,
    "ranks": 6,
    "cli": 7,
    "plugin": 7,
    "__main__": 8,
}
# Who imports torch when imported: rooms, and files of other rooms.
TORCH = {"_compat", "check", "interpreter", "measure", "ranks", "tensors", "testing"}
TORCH_FILES = {"session/case_pipeline.py"}
# In these folders files do not import each other, but for the base that they all stand on.
SIBLINGS = {
    "measure/metrics": {"subject"},
    "measure/devices/vendors": set(),
    "render": {
        *("words", "escaping", "overview", "findings", "title", "causes", "observed", "tables"),
        *("terminal", "pytest_benchmark"),
    },
}
PUBLIC = [
    "BaselineError",
    "DeviceError",
    "ExitStatus",
    "GuardFailure",
    "Hard",
    "MeasurementError",
    "PerfguardError",
    "Regression",
    "Tolerance",
    "UsageError",
    "Work",
    "WrongResult",
    "derived",
    "ids",
    "offsets",
]


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def module_of(path: Path) -> tuple[str, ...]:
    return path.relative_to(ROOT).with_suffix("").parts


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write it absolute"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_a_file_imports_only_from_its_own_room_and_from_floors_below() -> None:
    for path in files(PACKAGE):
        own = module_of(path)[1]
        if own == "__init__":
            continue
        assert own in FLOORS, f"{path}: no room of the house; put the file into one, or give the room a floor"
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "perfguard" and len(parts) > 1 and parts[1] in FLOORS:
                assert parts[1] == own or FLOORS[parts[1]] < FLOORS[own], f"{path}: {own} may not import {name}"


def test_siblings_do_not_import_each_other() -> None:
    for place, base in SIBLINGS.items():
        paths = [path for path in (PACKAGE / place).glob("*.py") if path.stem != "__init__"]
        folder = ("perfguard", *place.split("/"))
        for path in paths:
            siblings = {other.stem for other in paths} - base - {path.stem}
            for name in imports(path):
                *room, named = (*name.split("."), "", "", "")[: len(folder) + 1]
                assert tuple(room) != folder or named not in siblings, f"{path} may not import its sibling {name}"


def test_only_rooms_that_measure_import_torch() -> None:
    for path in files(PACKAGE):
        own = path.relative_to(PACKAGE).as_posix()
        if own.split("/")[0] in TORCH or any(own.startswith(place) for place in TORCH_FILES):
            continue
        typing_only = {
            node
            for block in ast.walk(tree_of(path))
            if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)
            for node in ast.walk(block)
        }
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Import | ast.ImportFrom) and node not in typing_only:
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
                assert not any(name.split(".")[0] in ("torch", "triton") for name in names), f"{path}: {names}"


# Modules of other projects that are theirs to change, though nothing in their names says so.
INTERNAL = (
    "triton.backends",
    "triton.compiler",
    "triton.experimental",
    "triton.knobs",
    "triton.language.standard",
    "triton.runtime",
    "torch.autograd.DeviceType",
    "pytest_benchmark",
    "xdist",
)
PROJECTS = {"torch", "triton", "pytest", "_pytest", "xdist", "pytest_benchmark"}
STANDARD = {"os._exit", "sys._getframe", "sys._current_frames"}  # Python's own


def is_private(name: str) -> bool:
    """Whether a dotted name means something private of another project."""
    first, *_ = parts = name.split(".")
    inside = any(name == each or name.startswith(f"{each}.") for each in INTERNAL)
    hidden = any(part.startswith("_") and not part.endswith("__") for part in parts)
    return first in PROJECTS and (inside or hidden)


def reached_for(path: Path) -> Iterator[str]:
    """Private names that a file imports, asks modules for, or takes of objects that are not its own."""
    tree = tree_of(path)
    own = {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"
    }
    own |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for name in imports(path):
        if is_private(name):
            yield name
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.fullmatch(r"[\w.]+", node.value) and is_private(node.value.strip(".")):
                yield node.value
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
            of, name = ast.unparse(node.value), ast.unparse(node)
            if of not in ("self", "cls") and node.attr not in own and name not in STANDARD:
                yield name
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr"):
            asked = str(getattr(node.args[1], "value", "")) if len(node.args) > 1 else ""
            if asked.startswith("_") and not asked.endswith("__") and asked not in own:
                yield ast.unparse(node)


def test_only_compat_reaches_for_private_names_of_other_projects() -> None:
    for path in files(PACKAGE):
        if path.parent.name != "_compat":
            assert not list(reached_for(path)), f"{path}: declare the name in perfguard/_compat, with what it is for"


def test_private_names_are_noticed(tmp_path: Path) -> None:
    found = {
        "import torch._dynamo.utils": "torch._dynamo.utils",
        "from torch.utils import _pytree": "torch.utils._pytree",
        "from triton.runtime import driver": "triton.runtime",
        "from triton import knobs": "triton.knobs",
        "import _pytest.terminal": "_pytest.terminal",
        "import xdist": "xdist",
        "sys.modules.get('torch._dynamo')": "torch._dynamo",
        "torch._C.DispatchKey": "torch._C",
        "config._parser": "config._parser",
        "getattr(backend, '_sleep', None)": "getattr(backend, '_sleep', None)",
    }
    path = tmp_path / "reaches.py"

    def reaches(source: str) -> list[str]:
        path.write_text(source)
        tree_of.cache_clear()
        return list(reached_for(path))

    for source, name in found.items():
        assert name in reaches(source), source
    for source in ("import torch.utils", "from triton import language", "self._own", "x.__dict__", "'triton.kernel'"):
        assert not reaches(source), source


def test_the_github_client_stands_on_errors_alone_and_knows_no_kernel_verdict_or_layout() -> None:
    own = ([], ["__version__"], ["model", "errors"], ["github", "api"])
    for path in files(PACKAGE / "github" / "api"):
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "perfguard":
                assert parts[1:3] in own or parts[1:2] == ["__version__"], f"{path.name} may not import {name}"
            else:
                assert parts[0] in {"msgspec", "requests", "urllib3"} | sys.stdlib_module_names, f"{path.name}: {name}"


def loaded_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


def test_github_loads_nothing_heavy() -> None:
    extra = loaded_after("import perfguard.github.api.client, perfguard.github.api.posts") - loaded_after("")
    assert {name.partition(".")[0] for name in extra} & {"perfguard", "msgspec"} == {"perfguard", "msgspec"}
    assert not extra & {"torch", "numpy", "scipy", "yaml", "rich", "pytest"}


def test_the_plugin_loads_nothing_heavy() -> None:
    extra = loaded_after("import pytest, perfguard.plugin") - loaded_after("import pytest")
    assert not extra & {
        "torch",
        "triton",
        "numpy",
        "scipy",
        "msgspec",
        "yaml",
        "rich",
        "requests",
        "subprocess",
    }
    assert "perfguard.plugin" in extra


@pytest.mark.parametrize(
    ("modules", "most"),
    [
        ("perfguard.pytest_plugin.fixture", 40),  # of a plain run, before a call is checked
        ("perfguard.pytest_plugin.start, perfguard.pytest_plugin.without_gpu", 80),  # of --perfguard
    ],
)
def test_what_a_run_loads_before_its_first_call(modules: str, most: int) -> None:
    """Process pairs, ranks, workers, binaries and summaries are loaded when they come."""
    own = [name for name in loaded_after(f"import perfguard.plugin, {modules}") if name.split(".")[0] == "perfguard"]
    assert most - 20 < len(own) <= most


def test_folders_of_modules_load_no_torch() -> None:
    """The trusted side of a pull request gathers limits, the doctor asks vendors, and neither needs torch."""
    kinds = "perfguard.measure.devices.vendors perfguard.measure.metrics perfguard.measure.timers"
    code = (
        "from perfguard.model.modules import modules_in\n"
        f"for package in {kinds.split()}:\n"
        "    assert len(modules_in(package)) > 3, package\n"
        "from perfguard.github.lanes.judge_again import declared\n"
        "assert declared('launches') and declared('spills', of_target=True)\n"
    )
    assert not loaded_after(code) & {"torch", "triton"}


def test_the_plugin_loads_no_metric() -> None:
    own = {"perfguard.model.modules", "perfguard.measure", "perfguard.measure.metrics", "perfguard.measure.timers"}
    assert not loaded_after("import pytest, perfguard.plugin") & own


def test_report_runs_without_torch(tmp_path: Path) -> None:
    """From JSON, on a machine that has no torch."""
    from perfguard.model.records import SCHEMA, Hardware, Report, Toolchain
    from perfguard.store.report_file import save_report

    hardware = Hardware(slug="nvidia-h200", vendor="nvidia", name="NVIDIA H200", architecture="sm_90")
    report = Report(schema=SCHEMA, hardware=hardware, toolchain=Toolchain(), started="2026-11-21T00:00:00")
    path = tmp_path / "report.json"
    save_report(path, report)
    code = (
        "import sys; sys.modules['torch'] = sys.modules['triton'] = None\n"
        f"from perfguard.cli import main; assert main(['report', {str(path)!r}]) == 0"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "nvidia-h200" in done.stdout


def test_public_names_are_pinned_and_sorted() -> None:
    assert perfguard.__all__ == sorted(perfguard.__all__) == PUBLIC
    assert all(hasattr(perfguard, name) for name in PUBLIC)


def test_at_most_ten_options() -> None:
    source = (PACKAGE / "plugin.py").read_text(encoding="utf-8")
    options = [
        node.args[0].value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") == "addoption"
        and "SUPPRESS" not in ast.unparse(node)  # for processes that perfguard starts
        if isinstance(node.args[0], ast.Constant)
    ]
    assert 0 < len(options) <= 10
    assert all(str(option).startswith("--perfguard") for option in options)


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def over_or_under(root: Path, budgets: Iterable[tuple[str, int, str]]) -> list[str]:
    """What is wrong with the budgets of the files in `root`, each with the number that is due."""
    most: Counter[str] = Counter()
    problems = []
    for pattern, budget, reason in budgets:
        if pattern in most and not reason:
            problems.append(f"{pattern}: raised by {budget} lines without a reason")
        most[pattern] += budget
    for pattern, budget in most.items():
        now = sum(lines(path) for path in root.glob(pattern))
        due = math.ceil(now / 50) * 50
        if now > budget:
            problems.append(f"{pattern}: {now} lines, over the budget of {budget}; {due} needs a row with a reason")
        elif budget - now > max(100, 0.03 * budget):
            problems.append(f"{pattern}: {now} lines, far under the budget of {budget}; lower it to {due}")
    return problems


def test_no_room_leaves_its_budget_of_lines() -> None:
    assert over_or_under(ROOT, BUDGETS) == []
    matched = {path for pattern, *_ in BUDGETS for path in ROOT.glob(pattern)}
    assert [path for path in files(PACKAGE) if path not in matched] == [], "a room without a budget"
    for folder, most in LARGEST.items():
        assert {path: lines(path) for path in files(folder) if lines(path) > most} == {}


def test_budgets_fail_both_ways(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "file.py").write_text("pass\n" * 1010)

    def problems(*budgets: tuple[int, str]) -> list[str]:
        return over_or_under(tmp_path, [("room/*.py", budget, reason) for budget, reason in budgets])

    assert problems((1010, "")) == problems((1110, "")) == problems((1000, ""), (50, "a reason")) == []
    assert problems((1000, "")) == [
        "room/*.py: 1010 lines, over the budget of 1000; 1050 needs a row with a reason",
    ]
    assert problems((1111, "")) == ["room/*.py: 1010 lines, far under the budget of 1111; lower it to 1050"]
    assert problems((1000, ""), (50, "")) == ["room/*.py: raised by 50 lines without a reason"]
    (tmp_path / "room" / "file.py").write_text("pass\n" * 9700)
    assert problems((10000, "")) == []
    assert problems((10001, "")) == ["room/*.py: 9700 lines, far under the budget of 10001; lower it to 9700"]


def test_kernels_know_nothing_of_perfguard_and_only_tests_know_kernels() -> None:
    for path in files(KERNELS):
        assert not [name for name in imports(path) if name.split(".")[0] == "perfguard"], path
    for path in files(PACKAGE):
        assert not [name for name in imports(path) if name.split(".")[0] == "kernels"], path


def test_the_tool_names_no_kernel() -> None:
    for path in files(PACKAGE):
        assert "quantize" not in path.read_text(encoding="utf-8").replace("quantize_rowwise[", "").replace(
            "test_quantize.py", ""
        ).replace("kernels.quantize", ""), path
