"""How a run ends whose verdicts came late, or that was cut short."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace

import pytest
from _pytest.junitxml import LogXML, xml_key

from perfguard.model.config import Config, Settings
from perfguard.model.records import (
    Baseline,
    BaseTree,
    Case,
    CaseBaseline,
    CaseResult,
    Reading,
    TimedEntry,
    Verdict,
    Word,
)
from perfguard.model.units import Unit
from perfguard.pytest_plugin.ending import Ending, cut_short, failed_report
from perfguard.session.open_run import open_run
from perfguard.session.run import Run
from perfguard.testing.fake import FakeDevice

CASES = [Case("suite", f"double[{n}]", "forward", f"test_suite.py::test_double[{n}]") for n in (1, 2, 3)]
FIRST, SECOND, THIRD = CASES
ENTRY = TimedEntry([50.0] * 5, "graph-u1")
RECORDED = Baseline("fake-gpu", "suite", cases={FIRST.key: CaseBaseline({"device_time_us": ENTRY})})


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return open_run(Config(root=tmp_path, settings=Settings()), FakeDevice(seed=1), ["suite"])


def junit(run: Run, tmp_path: Path) -> list[ET.Element]:
    """What stands in `--junitxml` of a run whose tests have all passed."""
    path = tmp_path / "junit.xml"
    log = LogXML(str(path), None)
    log.pytest_sessionstart()
    ending = Ending(run.config)
    ending._run = run
    ending._tell_junit(SimpleNamespace(stash={xml_key: log}))  # type: ignore[arg-type]
    log.pytest_sessionfinish()
    return ET.parse(path).getroot()[0].findall("testcase")


def test_what_pairs_called_slower_is_a_test_case_of_its_own(run: Run, tmp_path: Path) -> None:
    run.add_verdict(FIRST, Verdict(Word.CHANGED, "launches", reason="its test has failed by this"))
    run.add_verdict(FIRST, Verdict(Word.SLOWER, "device_time_us", reason="+20.0 % in 3 process pairs"))
    run.add_verdict(SECOND, Verdict(Word.CHANGED, "launches"))
    run.reported = {each.id: [Verdict(Word.CHANGED, "launches")] for each in (FIRST, SECOND)}
    run.add_verdict(THIRD, Verdict(Word.FASTER, "device_time_us"))
    (case,) = junit(run, tmp_path)
    assert (case.get("classname"), case.get("name")) == ("perfguard", "double[1]/forward")
    (failure,) = case.findall("failure")
    assert failure.text is not None
    assert "SLOWER device_time_us" in failure.text
    assert "+20.0 % in 3 process pairs" in failure.text
    assert "its test has failed by this" not in failure.text
    assert "reproduce: pytest --perfguard 'test_suite.py::test_double[1]'" in failure.text


def test_what_an_early_end_leaves_open_is_named(run: Run) -> None:
    run.lane = dataclasses.replace(run.lane, base=BaseTree("0" * 40), files=[RECORDED])
    time = Reading("device_time_us", Unit.MICROSECONDS, 55.0, timer="graph-u1")
    run.take(CaseResult(FIRST, readings=[time]))
    run.add_verdict(SECOND, Verdict(Word.BROKEN, reason="hangs"))
    cut_short(run, CASES, "the run ended")
    found = {result.case.name: result.verdicts for result in run.results.values()}
    (open_,) = found["double[1]"]
    assert (open_.word, open_.reason) == (Word.UNRESOLVED, "UNPAIRED: the run ended")
    assert open_.ratio == pytest.approx(1.1)  # what the record says of it is shown, and accuses nobody
    assert [verdict.word for verdict in found["double[2]"]] == [Word.BROKEN]
    assert found["double[3]"] == [Verdict(Word.UNRESOLVED, reason="not measured: the run ended")]


@pytest.mark.parametrize(("when", "said"), [("setup", "it failed in its setup"), ("???", "its process ended")])
def test_where_a_test_failed_is_named(run: Run, when: str, said: str) -> None:
    ending = Ending(run.config)
    ending.pytest_runtest_logreport(failed_report(FIRST.nodeid, ("test_suite.py", 1, "double"), "", when))
    assert ending._outcomes == {FIRST.nodeid: f"not finished: {said}"}
