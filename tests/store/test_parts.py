"""Entries in parts: in a file, planned, and found in the folder of their target."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfguard.judge.case_verdicts import judge_case
from perfguard.judge.lane import Lane
from perfguard.judge.update_plan import plan
from perfguard.model.errors import BaselineError
from perfguard.model.records import (
    Baseline,
    Case,
    CaseBaseline,
    CaseResult,
    Hardware,
    Parts,
    Provenance,
    Reading,
    Toolchain,
    Verdict,
    Word,
)
from perfguard.model.units import Unit
from perfguard.store.baseline_files import Store
from perfguard.store.baseline_parser import parse
from perfguard.store.baseline_update import apply
from perfguard.store.baseline_writer import render

CASE = Case("suite", "scale[64]", "forward", "test_suite.py::test_scale[64]")
CPU = Hardware(slug="cpu-x", vendor="cpu", name="x", architecture="x86_64", target="cpu")


def result(value: Parts, *verdicts: Verdict) -> CaseResult:
    reading = Reading("sm_90.spills", Unit.COUNT, value, target="sm_90", drifts=True)
    return CaseResult(CASE, inputs="float32[64]", readings=[reading], verdicts=list(verdicts))


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"rows": 0, "rows@1": 128, "groups/2": 76.5},
        {"rows": "none", "rows@1": 'needs "96 KB", gfx942 has 64 KB'},
        {f"a_kernel_with_a_long_name_{number}": number for number in range(8)},
        {"a, b: {c}": 1, "true": 2},
    ],
)
def test_a_file_holds_parts(parts: Parts) -> None:
    case = CaseBaseline(entries={"sm_90.spills": parts, "sm_90.unfit": {}})
    baseline = Baseline("targets/sm_90", "suite", Provenance(triton="3.9.0"), {CASE.key: case})
    text = render(baseline)
    read = parse(text.encode(), Path("suite.yaml"), "targets/sm_90", "suite").baseline
    assert read == baseline
    assert list(read.cases[CASE.key].entries["sm_90.spills"]) == list(parts)  # type: ignore[arg-type]
    assert max(map(len, text.splitlines())) <= 150


def test_a_part_that_is_no_value_is_told_with_its_line() -> None:
    text = "schema: 1\ntarget: sm_90\nprovenance: {}\ncases:\n  a/forward:\n    spills: {rows: [1]}\n...\n"
    with pytest.raises(BaselineError, match="line 6: found a list; expected a finite number"):
        parse(text.encode(), Path("suite.yaml"), "targets/sm_90", "suite")


def test_what_is_about_a_target_is_stored_and_judged_there(tmp_path: Path) -> None:
    store = Store(tmp_path)
    new = result({"rows": 0}, Verdict(Word.NEW, "sm_90.spills"))
    apply(store, plan(store, CPU, [new], {}, [], Provenance(triton="3.9.0"), 5), Provenance(triton="3.9.0"))
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.yaml")] == ["targets/sm_90/suite.yaml"]
    stored = store.load("targets/sm_90", "suite")
    assert stored is not None
    lane = Lane(CPU, Toolchain(triton="3.9.0"), targets={"sm_90": {"suite": stored}})
    assert [verdict.word for verdict in judge_case(result({"rows": 0}), lane)] == [Word.PASS]
    assert [verdict.word for verdict in judge_case(result({"rows": 8}), lane)] == [Word.CHANGED]
    (missing,) = judge_case(CaseResult(CASE, inputs="float32[64]"), lane)
    assert (missing.word, missing.metric) == (Word.UNRESOLVED, "sm_90.spills")
    # Another machine's cases of the target are no cases of this one.
    assert lane.remembered == frozenset()


def test_a_case_that_is_gone_leaves_every_target(tmp_path: Path) -> None:
    store = Store(tmp_path)
    provenance = Provenance(triton="3.9.0")
    apply(
        store,
        plan(store, CPU, [result({"rows": 0}, Verdict(Word.NEW, "sm_90.spills"))], {}, [], provenance, 5),
        provenance,
    )
    stale = Verdict(Word.STALE, reason="its test is gone", suite="suite", case=CASE.key)
    (change,) = plan(store, CPU, [], {}, [stale], provenance, 5)
    assert (change.category, change.folder) == ("stale", "targets/sm_90")
