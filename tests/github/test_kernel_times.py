"""The time of a kernel in an observed test, judged by whoever holds report and baselines alone, and accepted."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from msgspec.structs import replace

from perfguard.cli import main
from perfguard.github.lanes.baselines_at_commit import BaselineSet, read_files
from perfguard.github.lanes.lane_views import Reference, judge_lanes
from perfguard.github.lanes.untrusted_report import Received
from perfguard.model.errors import ExitStatus
from perfguard.model.records import (
    BaseTree,
    Better,
    Case,
    CaseResult,
    Entry,
    PairedCase,
    PairedTime,
    Pairing,
    PairReading,
    Reading,
    Report,
    Verdict,
    Word,
    dump_report,
)
from perfguard.model.units import Unit
from perfguard.render.markdown import render_markdown
from perfguard.render.overview import Headline, LaneView, Overview
from perfguard.store.baseline_files import Store
from tests.github.fake import sha
from tests.github.reports import PATH, SLUG, SUITE, baseline_file, report

KEY, TIME, BODY = "rms_norm[64]/test", "kernel_time_us[rows]", "body 1a2b3c4d"


def facts(grid: str, us: float) -> dict[str, Entry]:
    return {
        "launches": 1,
        "kernel_launches": {"rows": 1},
        "grids": {"rows": f"1 x {grid}"},
        "kernel_time_us": {"rows": us, "other": 7.0},
    }


def stored(entries: dict[str, Entry], reason: str = "") -> bytes:
    text = baseline_file({"rms_norm": entries}, {"rms_norm": reason} if reason else None)
    return text.replace(b"rms_norm/forward", KEY.encode()).replace(b"float32[64]", BODY.encode())


def slower(us: float = 55.0, pairs: int = 4) -> Report:
    """The kernel has another grid and takes `us` in place of 41 µs."""
    value = facts("(8,)", us)
    readings = [
        Reading("launches", Unit.COUNT, 1, drifts=True),
        *(
            Reading(
                name, Unit.TEXT, value[name], Better.SAME, gated=False, covers=["kernel_time_us"], drifts=True,
                details="launches",
            )
            for name in ("kernel_launches", "grids")
        ),
    ]  # fmt: skip
    case = Case("area", "rms_norm[64]", "test", "tests/test_area.py::test_rms_norm[64]")
    change = math.log(us / 41.0)
    read = [PairReading(number, change, 0.001 * (-1) ** number, 41.0, us) for number in range(1, pairs + 1)]
    then = [replace(each, value=facts("(4,)", 41.0)[each.metric]) for each in readings]
    base = CaseResult(case, BODY, readings=then)
    paired = PairedCase("area", KEY, base, [PairedTime(TIME, "profile-test", read)])
    return report(
        [CaseResult(case, BODY, readings=readings)],
        pairings=[Pairing(sha("base"), [paired], pairs)], base=BaseTree(sha("base")),
    )  # fmt: skip


def remembered(text: bytes) -> BaselineSet:
    return read_files({PATH: text}, "baselines")


def seen(given: Report, head: bytes | None = None) -> LaneView:
    trusted = Reference(remembered(stored(facts("(4,)", 41.0))), None if head is None else remembered(head))
    return judge_lanes({SLUG: Received(given)}, trusted).lanes[0]


def verdict_of(view: LaneView) -> Verdict:
    assert view.report is not None
    return next(each for each in view.report.results[0].verdicts if each.metric == TIME)


def word_of(view: LaneView) -> Word:
    return verdict_of(view).word


def test_process_pairs_judge_it_again_by_limits_that_no_report_gives() -> None:
    view = seen(slower())
    assert (word_of(view), view.unmeasured) == (Word.SLOWER, [])
    assert Overview(lanes=[view]).headline is Headline.WORSE
    assert "because: grids rows 1 x (4,) -> 1 x (8,)" in verdict_of(view).reason
    comment = render_markdown(Overview(lanes=[view]))
    assert "perfguard compare" not in comment  # which leaves observed tests out
    assert word_of(seen(slower(41.4))) is Word.PASS  # 1 % is less than the time of a test can show
    alone = seen(slower(pairs=0))
    assert (word_of(alone), Overview(lanes=[alone]).headline) == (Word.UNRESOLVED, Headline.UNVERIFIED)
    open_ = Verdict(Word.UNRESOLVED, TIME, "UNPAIRED: the run was interrupted")
    given = slower()
    given = replace(given, results=[replace(given.results[0], verdicts=[open_])])
    assert word_of(seen(given)) is Word.SLOWER  # no reading is missing: its pairs tell


@pytest.mark.parametrize(
    ("head", "headline"),
    [
        (stored(facts("(8,)", 55.0), "wider tiles"), Headline.ACCEPTED),
        (stored(facts("(8,)", 55.0)), Headline.WORSE),  # no reason
        (stored(facts("(8,)", 41.0)), Headline.WORSE),  # no new time
        (stored(facts("(4,)", 55.0), "wider tiles"), Headline.WORSE),  # of other launches
    ],
)
def test_an_edit_covers_it_that_holds_the_launches_and_a_reason(head: bytes, headline: Headline) -> None:
    assert Overview(lanes=[seen(slower(), head)]).headline is headline


def test_perfguard_accept_writes_such_an_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(f'[tool.perfguard]\nlanes = ["{SLUG}"]\n')
    (tmp_path / PATH).parent.mkdir(parents=True)
    (tmp_path / PATH).write_bytes(stored(facts("(4,)", 41.0)))
    given = slower()
    (tmp_path / "given.json").write_bytes(dump_report(given))
    assert main(["accept", "--from", "given.json", "--reason=wider tiles"]) == ExitStatus.PASSED
    accepted = Store(tmp_path / "baselines").load(SLUG, SUITE)
    assert accepted is not None
    case = accepted.cases[KEY]
    assert case.entries["grids"] == {"rows": "1 x (8,)"}
    assert case.entries["kernel_time_us"] == {"rows": pytest.approx(55.0, rel=1e-3), "other": 7.0}
    assert accepted.provenance_of(KEY).reason == "wider tiles"
    assert Overview(lanes=[seen(given, (tmp_path / PATH).read_bytes())]).headline is Headline.ACCEPTED
