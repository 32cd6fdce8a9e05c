"""What only the report's own word keeps from a verdict is no success until a person has seen it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perfguard.github.lanes.baselines_at_commit import read_files
from perfguard.github.lanes.judge_again import judge_again
from perfguard.judge.pair_test import MOST_PAIRS
from perfguard.judge.update_plan import plan
from perfguard.model.records import BaseTree, CaseResult, Report
from perfguard.model.records.change import select
from perfguard.store.baseline_files import Store, apply
from tests.github.conftest import BASE, PostJob
from tests.github.fake import sha
from tests.github.reports import (
    CODE,
    HARDWARE,
    PATH,
    SLUG,
    TOOLCHAIN,
    baseline_file,
    compared,
    entries,
    measured,
    paired,
    report,
)

OTHER_DRIVER = replace(TOOLCHAIN, driver="590.2")
NAMES = ("f", "g", "h", "k")
MORE = {name: entries() for name in NAMES}


def unpaired(results: list[CaseResult], **fields: Any) -> Report:
    return report(results, **{"base": BaseTree(sha("fork-point")), **fields})


def unanswered(given: Report) -> Report:
    """The report without what the base read."""
    pairings = [replace(each, cases=[replace(case, base=None) for case in each.cases]) for each in given.pairings]
    return replace(given, pairings=pairings)


def by_timer(result: CaseResult, timer: str) -> CaseResult:
    return replace(result, readings=[replace(each, timer=timer) if each.timed else each for each in result.readings])


CLAIMS = {
    "driver, heavier": unanswered(
        replace(
            compared({"f": 50.0, "g": 50.0}), results=[measured("f", launches=2), measured("g")], toolchain=OTHER_DRIVER
        )
    ),
    "driver, slower and unpaired": unpaired([measured("f", 55.0), measured("g")], toolchain=OTHER_DRIVER),
    "timer": unpaired([by_timer(measured("f", 55.0), "wall"), measured("g")]),
    "inputs": replace(
        compared({"f": 50.0, "g": 50.0}), results=[measured("f", launches=2, inputs="float32[8]"), measured("g")]
    ),
    "power limit": unpaired(
        [measured("f", 55.0), measured("g")], hardware=replace(HARDWARE, power_limit_watts=500.0)
    ),
    "no process pairs of one case": replace(
        compared(dict.fromkeys(NAMES, 50.0)),
        results=[measured("f", 55.0), *map(measured, NAMES[1:])],
        pairings=[paired(dict.fromkeys(NAMES[1:], 50.0))],
    ),
    "one process pair of one case": replace(
        compared(dict.fromkeys(NAMES, 50.0)),
        results=[measured("f", 55.0), *map(measured, NAMES[1:])],
        pairings=[replace(paired(dict.fromkeys(NAMES[1:], 50.0)), cases=[
            *paired({"f": 55.0}, pairs=1).cases, *paired(dict.fromkeys(NAMES[1:], 50.0)).cases
        ])],
    ),
}  # fmt: skip


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_only_the_report_excuses_is_no_success(job: PostJob, claim: str) -> None:
    job.baselines(baseline_file(MORE if "one case" in claim else BASE))
    job.measured({SLUG: CLAIMS[claim]})
    assert job.posted() == "error"
    said = "without process pairs" if "process pair" in claim else "under other conditions than recorded"
    for context in ("perfguard", f"perfguard/{SLUG}"):
        state, description = job.statuses[context]
        assert state == "error"
        assert description.startswith("not verified: ")
        assert said in description
    assert said in job.comments[0]
    assert "f/forward" in job.comments[0]


def test_pairs_that_cannot_tell_are_undecided_and_no_claim(job: PostJob) -> None:
    """They were measured to the end, and scatter."""
    job.baselines(baseline_file(MORE))
    given = compared(dict.fromkeys(NAMES, 50.0))
    (pairing,) = given.pairings
    wild = [
        replace(each, change=0.4 * (-1) ** each.pair, control=0.4 * (-1) ** (each.pair // 2))
        for each in paired({"f": 50.0}, pairs=MOST_PAIRS).cases[0].times[0].readings
    ]
    noisy = replace(pairing.cases[0], times=[replace(pairing.cases[0].times[0], readings=wild)])
    job.measured({SLUG: replace(given, pairings=[replace(pairing, cases=[noisy, *pairing.cases[1:]])])})
    assert job.posted() == "success"
    assert job.statuses["perfguard"][1].startswith("undecided: 1 of 4 timed cases")


def updated(given: Report, base: bytes, folder: Path, reason: str = "") -> bytes:
    """The suite's file after `--perfguard-update` wrote what `given` read."""
    path = folder / PATH
    path.parent.mkdir(parents=True)
    path.write_bytes(base)
    store = Store(folder / "baselines")
    lane = read_files({PATH: base}, "baselines").lane(given.hardware, given.toolchain)
    judged = judge_again(given, lane)
    planned = plan(lane, judged.results, {}, [], judged.provenance)
    chosen, left = select(planned, {"changed", "new"}, reason)
    assert not left
    apply(store, chosen, judged.provenance, reason)
    return path.read_bytes()


UPGRADED = [measured("f", 50.6, code=CODE), measured("g", 49.5, code=CODE)]
NEW_CODE = "fedcba9876543210"
GREEN_AFTER_UPDATE = {
    "driver, unpaired": unpaired(UPGRADED, toolchain=OTHER_DRIVER),
    "timer": unpaired([by_timer(measured(name, 55.0, code=NEW_CODE), "wall") for name in ("f", "g")]),
    "inputs": unpaired([replace(each, inputs="float32[8]") for each in UPGRADED]),
    "inputs, other code": unpaired([measured("f", 70.0, code=NEW_CODE, inputs="float32[128]"), UPGRADED[1]]),
    "power limit": unpaired(UPGRADED, hardware=replace(HARDWARE, power_limit_watts=500.0)),
}  # fmt: skip


@pytest.mark.parametrize("claim", GREEN_AFTER_UPDATE)
def test_one_update_commit_turns_it_green(job: PostJob, claim: str, tmp_path: Path) -> None:
    base = baseline_file({name: entries(code=CODE) for name in ("f", "g")})
    job.baselines(base)
    given = GREEN_AFTER_UPDATE[claim]
    job.measured({SLUG: given})
    job.post()
    assert job.statuses["perfguard"][0] == "error"
    job.baselines(base, updated(given, base, tmp_path / "checkout", "larger" if "other code" in claim else ""))
    job.measured({SLUG: given})
    assert job.posted() == "success"
    assert job.statuses["perfguard"][0] == "success"
    assert job.statuses["perfguard"][1].startswith("accepted: ")


def test_what_the_base_reads_under_the_same_driver_judges_in_place_of_a_record_under_another(job: PostJob) -> None:
    for launches, state in ((1, "success"), (2, "failure")):
        results = [measured("f", launches=launches), measured("g")]
        job.measured({SLUG: replace(compared({"f": 50.0, "g": 50.0}), results=results, toolchain=OTHER_DRIVER)})
        assert job.posted() == state
    assert "1 case changed" in job.statuses["perfguard"][1]


def test_under_another_driver_the_base_s_own_code_is_unchanged(job: PostJob) -> None:
    """A pull request of documents, after the lane's driver was upgraded."""
    equal = BaseTree(sha("fork-point"), equal=True)
    job.measured({SLUG: unpaired([measured("f", 50.6), measured("g", 49.5)], toolchain=OTHER_DRIVER, base=equal)})
    assert job.posted() == "success"
    assert job.statuses["perfguard"] == ("success", "no change in 2 cases on 1 lane")


def test_an_edit_of_other_values_under_the_claim_covers_nothing(job: PostJob, tmp_path: Path) -> None:
    base = baseline_file(BASE)
    slow = unpaired([measured("f", 80.0), measured("g")], toolchain=OTHER_DRIVER)
    job.baselines(base, updated(GREEN_AFTER_UPDATE["driver, unpaired"], base, tmp_path / "checkout"))
    job.measured({SLUG: slow})
    job.post()
    assert job.statuses["perfguard"][0] == "error"
