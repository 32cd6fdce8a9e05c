"""The mutation score's parts: operators, what is drawn, which tests could notice, and the page."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

from benchmarks.checkouts import HANGS, Ran
from benchmarks.mutation.judging import SUITES, Cases, Judged, found
from benchmarks.mutation.operators import OURS, Rewriting, operators
from benchmarks.mutation.reaching import load
from benchmarks.mutation.report import argued, page, score
from benchmarks.mutation.sampling import ROOT, Mutant, drawn, files, mutants_of
from perfguard.model.records import Baseline, CaseBaseline, Provenance
from perfguard.store.baseline_files import Store
from perfguard.store.baseline_form import render

KERNEL = """\
import triton
import triton.language as tl


@triton.jit
def scale(x_ptr, n, BLOCK: tl.constexpr = 8 * 2):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(x_ptr + offs, x * 2, mask=offs < n)


def run(x, rows: int | None = None):
    scale[(1,)](x, x.numel())
    return x
"""


def remember(root: Path, suite: str, kernels: Mapping[str, str]) -> None:
    """A record in `baselines/cpu`. `kernels`: key of a case -> the kernel that it launches."""
    cases = {key: CaseBaseline({"code": {kernel: "0" * 17}}, recording="one") for key, kernel in kernels.items()}
    baseline = Baseline("cpu", f"kernels.{suite}", {"one": Provenance()}, cases)
    store = Store(root / "baselines")
    store.replace({store.path("cpu", baseline.suite): render(baseline).encode()})


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "kernels" / "own").mkdir(parents=True)
    (tmp_path / "kernels" / "own" / "scale.py").write_text(KERNEL)
    (tmp_path / "kernels" / "own" / "reference.py").write_text("def scale(x):\n    return x * 2\n")
    remember(tmp_path, "own_guarded", {"scale[8/2:a]/forward": "scale"})
    return tmp_path


@pytest.mark.parametrize("operator", OURS, ids=lambda operator: operator.name)
def test_an_operator_makes_what_its_examples_say(operator: Rewriting) -> None:
    for example in operator.examples():
        assert mutate_code(example.pre_mutation_code, operator, 0) == example.post_mutation_code


@pytest.mark.parametrize("operator", OURS, ids=lambda operator: operator.name)
def test_an_operator_leaves_other_code_alone(operator: Rewriting) -> None:
    assert mutate_code("def f(x: int) -> str:\n    return g(x, y=2)[0]\n", operator, 0) is None


def test_masks_are_dropped_and_annotations_and_oracles_are_not(tree: Path) -> None:
    mutants = list(mutants_of("kernels/own/scale.py", tree))
    masks = [mutant.change(tree) for mutant in mutants if mutant.operator == "DropMask"]
    assert masks == [
        ("x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)", "x = tl.load(x_ptr + offs, mask=None, other=0.0)"),
        ("tl.store(x_ptr + offs, x * 2, mask=offs < n)", "tl.store(x_ptr + offs, x * 2, mask=None)"),
    ]
    assert not any("rows: int" in mutant.change(tree)[1] for mutant in mutants if mutant.group == "arithmetic")
    assert {mutant.file for mutant in drawn(0, tree)} == {"kernels/own/scale.py"}


def test_a_seed_draws_each_group_in_turn_and_the_same_every_time(tree: Path) -> None:
    first, again = list(islice(drawn(3, tree), 8)), list(islice(drawn(3, tree), 8))
    assert first == again
    assert max(Counter(mutant.group for mutant in first).values()) <= 2
    assert list(islice(drawn(4, tree), 8)) != first


def test_all_of_our_operators_apply_somewhere_in_the_kernels() -> None:
    left = {operator.name: operator for operator in OURS}
    for file in files():
        for node in ast_nodes(get_ast((ROOT / file).read_text())):
            for name in [name for name, operator in left.items() if operator.rewrites(node)]:
                del left[name]
        if not left:
            break
    assert left == {}
    assert len({group for group, _ in operators().values()}) == len(OURS) + 5


def test_a_line_is_noticed_by_who_runs_it_or_compiles_it_or_else_by_its_package(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = "tests/kernels/test_own_guarded.py"
    ran, compiled = f"{suite}::test_run[1]", f"{suite}::test_scale[8/2:a]"
    monkeypatch.setitem(SUITES, "own", ("own",))
    cases = Cases({"kernels/own/scale.py": {13: [ran]}}, {ran: 1.0, compiled: 2.0}, tree)
    mutants = {mutant.line: mutant for mutant in mutants_of("kernels/own/scale.py", tree)}
    assert cases.of(mutants[8]) == [compiled]
    assert cases.of(Mutant("kernels/own/scale.py", "Detach", 0, 13, "Detach")) == [ran, compiled]  # it names the kernel
    assert cases.of(Mutant("kernels/own/scale.py", "Detach", 0, 14, "Detach")) == [compiled]
    (tree / "kernels" / "own" / "plain.py").write_text("def double(x):\n    return x * 2\n")
    unknown = Mutant("kernels/own/plain.py", "Detach", 0, 2, "Detach")
    assert cases.of(unknown) == [ran, compiled]
    monkeypatch.delitem(SUITES, "own")
    assert cases.of(unknown) == []


BLOCK = """\
class Block:
    loop: bool = True

    def run(self, x):
        return x


def build(
    x,
    loop=True,
):
    block = Block()
    return block.run(x)
"""


@pytest.mark.parametrize(("line", "running"), [(2, ["run"]), (10, ["build"]), (4, ["run"]), (12, ["build"])])
def test_signatures_and_attributes_are_noticed_by_who_runs_the_body(
    tmp_path: Path, line: int, running: list[str]
) -> None:
    """They run when they are imported, before any test."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "block.py").write_text(BLOCK)
    reached = {"kernels/block.py": {5: ["run"], 12: ["build"], 13: ["build"]}}
    cases = Cases(reached, {"run": 1.0, "build": 2.0}, tmp_path)
    assert cases.of(Mutant("kernels/block.py", "Detach", 0, line, "Detach")) == running


def test_a_constant_of_a_module_is_noticed_by_who_uses_it(tmp_path: Path) -> None:
    file = tmp_path / "kernels" / "table.py"
    file.parent.mkdir()
    file.write_text("SIZES = {\n    1: 2,\n}\n\n\ndef size(x):\n    return SIZES[x]\n\n\ndef other(x):\n    return x\n")
    reached = {"kernels/table.py": {7: ["size"], 11: ["other"]}}
    cases = Cases(reached, {"size": 1.0, "other": 1.0}, tmp_path)
    assert cases.of(Mutant("kernels/table.py", "NumberReplacer", 0, 2, "constant")) == ["size"]


def test_each_kernel_of_a_file_has_a_test_of_its_own_package(tmp_path: Path) -> None:
    remember(tmp_path, "moe_guarded", {"cheap/forward": "first", "cheaper/forward": "first", "dear/forward": "second"})
    (tmp_path / "kernels" / "moe").mkdir(parents=True)
    (tmp_path / "kernels" / "moe" / "two.py").write_text(
        "def first():\n    pass\n\n\ndef second():\n    pass\n\n\nX = 1\n"
    )
    name = "tests/kernels/test_moe_guarded.py::test_"
    seconds = {f"{name}cheap": 2.0, f"{name}cheaper": 1.0, f"{name}dear": 9.0}
    chosen = Cases({}, seconds, tmp_path).of(Mutant("kernels/moe/two.py", "NumberReplacer", 0, 9, "constant"))
    assert chosen[:2] == [f"{name}cheaper", f"{name}dear"]


def test_a_line_is_reached_by_a_test_in_any_of_its_processes(tmp_path: Path) -> None:
    """Ranks are processes of their own, each with what it has run."""
    for process, lines in enumerate([{"7": ["one"]}, {"7": ["two"], "8": ["two"]}, {"7": ["two"]}]):
        (tmp_path / f"{process}.json").write_text(json.dumps({"kernels/x.py": lines}))
    assert load(tmp_path) == {"kernels/x.py": {7: ["one", "two"], 8: ["two"]}}


def test_tests_of_other_ways_come_before_more_of_the_same(tmp_path: Path) -> None:
    eager, other = "t.py::test_a[8x8]", "t.py::test_a[9x9]"
    interpreted, typed = "t.py::test_a[8x8-interpreted]", "t.py::test_a[8x8-float32-interpreted]"
    second = "t.py::test_b[8x8]"
    seconds = {eager: 1.0, other: 2.0, interpreted: 3.0, typed: 5.0, second: 4.0}
    chosen = Cases({}, seconds, tmp_path)._cheapest({*seconds}, 9)
    assert chosen == [eager, second, interpreted, typed, other]


def _seen(word: str, before: str = "a") -> dict[str, Any]:
    return {"file": "kernels/fp8/x.py", "group": "DropMask", "before": before, "after": "b", "word": word}


def test_the_score_leaves_equivalents_out_and_counts_what_nobody_reaches() -> None:
    seen = [_seen("WRONG"), _seen("survived", "same"), _seen("survived"), _seen("not reached"), _seen("error")]
    argued = [mutant | {"equivalent": "why"} if mutant["before"] == "same" else mutant for mutant in seen]
    assert score(argued) == (1, 5, 1, 1)
    text = page({"mutants": seen, "seed": 0, "commit": "0" * 40, "date": "2026-01-01"})
    assert "| DropMask | 1 | 5 | 0 | 1 | 20 % |" in text
    assert text.count("survived") == 2
    assert not Judged("f", 1, "o", "g", "", "", "error").killed
    assert Judged("f", 1, "o", "g", "", "", "WRONG").killed


def test_a_process_that_a_signal_ended_is_noticed() -> None:
    """A kernel that leaves its memory may take the interpreter with it: no report is left, and CI is red."""
    assert found(Ran(-signal.SIGSEGV, "Fatal Python error", None)) == ("dies", "", "SIGSEGV")
    assert found(Ran(HANGS, "", None)) == ("hangs", "", "")
    assert Judged("f", 1, "o", "g", "", "", "dies").killed


def test_a_run_that_the_machine_ended_tells_nothing() -> None:
    assert found(Ran(-signal.SIGKILL, "", None))[0] == "error"


def test_what_is_argued_still_stands_in_the_kernels() -> None:
    """A line that changed is argued anew."""
    for kind in ("equivalent", "open"):
        for (file, before, _), why in argued(kind).items():
            assert before in {line.strip() for line in (ROOT / file).read_text().splitlines()}, (file, before)
            assert why
