"""The corpus' own rules: a mutant that changes nothing is an error, and a grade needs word, metric, cases and text."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from benchmarks.checkouts import ROOT, Ran
from benchmarks.planting import Append, Edit, Expect, Grade, NotApplied, Rewrite, planted_in, weigh
from perfguard.model.records import Case, CaseResult, Hardware, Report, Toolchain, Verdict, Word
from perfguard.model.units import Unit
from tests.corpus.catalogue import DAILY, ELSEWHERE, all_mutants, shown
from tests.corpus.rivals import FAILED, Seen
from tests.corpus.saved import CleanRuns, Judged, Saving, key, read_parts
from tests.corpus.table import page

SUITES = ROOT / "tests" / "corpus" / "suites"
HARDWARE = Hardware(slug="cpu", vendor="cpu", name="CPU", architecture="x86_64")
CHANGED = Verdict(Word.CHANGED, "copies", "copies: aten.clone at a.py:1 in f", before=1, after=2, unit=Unit.COUNT)
EXPECT = Expect("CHANGED", "copies", cases=("f[1]/*",), says=("aten.clone at",), also=("copy_bytes",))


def ran(verdicts: dict[str, list[Verdict]], status: int = 10) -> Ran:
    """A run with these verdicts by the name of the case; others pass."""
    results = [
        CaseResult(Case("suite", name, "forward", f"test_a.py::test_{name}"), verdicts=verdicts.get(name, []))
        for name in ("f[1]", "f[2]")
    ]
    report = Report(1, HARDWARE, Toolchain(), "2026-11-21T00:00:00+00:00", None, "0", results=results)
    return Ran(status, "", report)


@pytest.mark.parametrize(
    ("verdicts", "status", "grade"),
    [
        ({"f[1]": [CHANGED]}, 10, Grade.CAUGHT),
        ({"f[1]": [CHANGED, Verdict(Word.CHANGED, "copy_bytes")]}, 10, Grade.CAUGHT),
        ({"f[1]": [CHANGED, Verdict(Word.CHANGED, "operators")]}, 10, Grade.HALF),
        ({"f[1]": [Verdict(Word.CHANGED, "copies", "copies 1 -> 2")]}, 10, Grade.HALF),
        ({"f[1]": [Verdict(Word.SLOWER, "device_time_us")]}, 10, Grade.HALF),
        ({"f[1]": [CHANGED]}, 0, Grade.HALF),
        ({"f[1]": [CHANGED], "f[2]": [CHANGED]}, 10, Grade.FALSE),
        ({"f[2]": [CHANGED]}, 10, Grade.FALSE),
        ({}, 0, Grade.MISSED),
    ],
    ids=["caught", "and its bytes", "more", "no text", "another word", "green", "all", "another case", "nothing"],
)
def test_a_grade_needs_word_metric_cases_and_text(
    verdicts: dict[str, list[Verdict]], status: int, grade: Grade
) -> None:
    assert weigh(EXPECT, ran(verdicts, status)).grade is grade


def test_an_event_may_accuse_nobody() -> None:
    passed = {name: [Verdict(Word.PASS, "copies")] for name in ("f[1]", "f[2]")}
    assert weigh(Expect("PASS"), ran(passed, 0)).grade is Grade.CAUGHT
    assert weigh(Expect("PASS"), ran(passed | {"f[2]": [CHANGED]})).grade is Grade.FALSE
    assert weigh(Expect("DRIFT"), ran(passed, 0)).grade is Grade.MISSED


def test_other_cases_may_need_a_word_of_their_own() -> None:
    slower, faster = Verdict(Word.SLOWER, "device_time_us"), Verdict(Word.FASTER, "device_time_us")
    both = {"f[1]": [slower], "f[2]": [faster]}
    for pattern, word, grade in (("f[2]/*", "FASTER", Grade.CAUGHT), ("f[2]/*", "PASS", Grade.HALF)):
        assert weigh(Expect("SLOWER", cases=("f[1]/*",), others={pattern: word}), ran(both)).grade is grade
    assert weigh(Expect("SLOWER", cases=("f[1]/*",), others={"g/*": "FASTER"}), ran(both)).grade is Grade.HALF


def test_a_miss_tells_whether_the_mutant_was_run() -> None:
    same, other = Verdict(Word.PASS, "copies"), Verdict(Word.PASS, "binary", "not gated: binary a -> b")
    assert not weigh(EXPECT, ran({"f[1]": [same], "f[2]": [other]}, 0)).moved
    assert weigh(EXPECT, ran({"f[1]": [same, other]}, 0)).moved


def test_an_interval_that_misses_the_truth_is_half() -> None:
    slower = Verdict(Word.SLOWER, "device_time_us", ratio=1.04, interval=(1.03, 1.05))
    for effect, grade in ((1.04, Grade.CAUGHT), (1.055, Grade.CAUGHT), (1.06, Grade.HALF), (1.02, Grade.HALF)):
        expect = Expect("SLOWER", cases=("f[1]/*",), effect=effect)
        assert weigh(expect, ran({"f[1]": [slower]})).grade is grade


def test_what_finds_nothing_to_change_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\ny = 1\n")
    Edit("a.py", "x = 1", "x = 2")(tmp_path)
    Append("a.py", "z = 3")(tmp_path)
    assert (tmp_path / "a.py").read_text() == "x = 2\ny = 1\n\n\nz = 3\n"
    with planted_in(tmp_path, Edit("a.py", "1", "4", behind="y = "), Append("a.py", "w = 5")):
        assert (tmp_path / "a.py").read_text() == "x = 2\ny = 4\n\n\nz = 3\n\n\nw = 5\n"
    Rewrite("*.py", r"([xy]) = (\d)", r"\1 = 1\2", times=2)(tmp_path)
    assert (tmp_path / "a.py").read_text() == "x = 12\ny = 11\n\n\nz = 3\n"
    for change in (Edit("a.py", "x = 3", "x = 4"), Edit("a.py", " = ", ""), Edit("a.py", "x", "2", behind="y")):
        with pytest.raises(NotApplied, match="times; give text that stands there once"):
            change(tmp_path)
    for change in (Rewrite("*.py", "=", "-"), Rewrite("*.py", "!", "", times=None), Rewrite("*.yaml", "=", "-")):
        with pytest.raises(NotApplied):
            change(tmp_path)


def test_every_edit_finds_its_text(tmp_path: Path) -> None:
    """Many mutants run only at night; a change that moves a line that one of them edits is told at once."""
    missed = []
    for number, mutant in enumerate(all_mutants()):
        for edit in (*mutant.given, *mutant.apply):
            if not isinstance(edit, Edit) or edit.file.startswith(("baselines/", "pyproject")):  # by a run
                continue
            names = {"conftest.py": "_project.py", f"test_{mutant.suite}.py": f"{mutant.suite}.py"}
            source = SUITES / names[edit.file] if edit.file in names else ROOT / edit.file
            file = tmp_path / str(number) / edit.file
            if not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, file)
            try:
                edit(tmp_path / str(number))
            except NotApplied as error:
                missed.append(f"{mutant.name}: {error}")
    assert not missed


def test_every_mutant_has_a_suite_and_stands_somewhere() -> None:
    mutants = all_mutants()
    assert len(mutants) > 40
    for mutant in mutants:
        assert (SUITES / f"{mutant.suite}.py").is_file(), mutant.name
        assert mutant.shown, mutant.name
        assert set(mutant.open) <= set(mutant.shown), mutant.name
    assert len(list(shown())) >= len(mutants)


def test_every_class_is_judged_with_every_change() -> None:
    mutants = all_mutants()
    assert {mutant.name for mutant in mutants} >= DAILY
    without_gpu = [mutant for mutant in mutants if {*mutant.shown} - {"G"}]
    judged = {each for mutant in without_gpu if mutant.name in DAILY for each in mutant.classes}
    assert judged | ELSEWHERE.keys() == {each for mutant in without_gpu for each in mutant.classes}
    assert judged.isdisjoint(ELSEWHERE)
    for name, file in ELSEWHERE.items():
        assert name in (ROOT / "tests" / "measure" / file).read_text(), f"{name}: {file} has no mutant of this class"


def test_what_pytest_benchmark_says_of_a_slower_test() -> None:
    line = "\ttest_layer[32] (0001_clean) - Field 'median' has failed PercentageRegressionCheck: 36.1234567 > 5.0000"
    assert FAILED.findall(line) == [("test_layer[32]", "36.1234567")]


def test_one_page_is_made_of_parts_and_the_last_word_counts(tmp_path: Path) -> None:
    mutants = [each for each in shown() if "K05" in each[0].classes]
    names = {place: key(mutant, place) for mutant, place in mutants}
    said = Judged(Grade.HALF, ["text: does not say 'x'"], ["test_layer[32]"], "CHANGED operators: 1 -> 2", 3.0)
    first, second = Saving(tmp_path / "1.json", "a laptop"), Saving(tmp_path / "2.json", "another")
    first.part.judged[names["C"]] = said
    first.part.rivals[names["C"]] = Seen({}, {"test_layer[32]": "+38 %", "test_spread": "+7 %"}, None)
    second.part.clean["moe"] = CleanRuns(20, 900, [], 3, 60.0)
    for saving in (first, second):
        saving.save()
    text = page(mutants, read_parts([tmp_path / "1.json", tmp_path / "2.json"]))
    assert "| C | half: `CHANGED operators: 1 -> 2` | missed | half (+38 %); false alarm (1: +7 %) | not run |" in text
    assert "on a CPU: text: does not say 'x'" in text
    assert "- 1 judged by perfguard, rivals asked of 1 in 0 minutes: a laptop" in text
    assert "| moe | 20 | 900 | 0 | 3 |" in text
    assert "## Not run yet\n\n- K05: the grouped product falls back to a loop (GPU)" in text
    second.part.judged[names["C"]] = msgspec.structs.replace(said, grade=Grade.CAUGHT, problems=[])
    second.save()
    text = page(mutants, read_parts([tmp_path / "1.json", tmp_path / "2.json"]))
    assert "| C | caught: `CHANGED operators: 1 -> 2` |" in text
    assert "does not say" not in text
