"""What process pairs are asked of observed tests, and why a kernel in one of them has no time."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from perfguard.model.records import SCHEMA, Case, CaseResult, Hardware, Reading, Report, Toolchain
from perfguard.model.units import Unit
from perfguard.session.pairing.outcome import PairOutcome, TimeId
from perfguard.session.pairing.processes import SIDES, Side
from perfguard.session.pairing.tally import Tally

TEST = "test_ops.py::test_norm"
RESULT = CaseResult(Case("ops", "norm", "test", TEST), "body 1", readings=[Reading("launches", Unit.COUNT, 1)])
EDITED = CaseResult(RESULT.case, "body 2", readings=RESULT.readings)
ROWS, COLUMNS = (TimeId("ops", "norm/test", f"kernel_time_us[{kernel}]") for kernel in ("rows", "columns"))


def report(*results: CaseResult) -> Report:
    return Report(SCHEMA, Hardware("fake-gpu", "fake", "Fake", "fake"), Toolchain(), "now", results=list(results))


@pytest.mark.parametrize(
    ("base", "collected", "announced", "why"),
    [
        ((), set(), {}, "new since the base"),
        ((), {TEST}, {"work": "profile-test"}, "its test did not pass at the base"),
        ((RESULT,), {TEST}, {"work": "profile-test"}, "the test does not launch it at the base, or cannot run twice"),
        ((EDITED,), {TEST}, {}, "other inputs: body 2 -> body 1"),
    ],
)
def test_what_cannot_be_paired_is_given_up_at_once_with_its_reason(
    base: tuple[CaseResult, ...], collected: set[str], announced: Mapping[Side, str], why: str
) -> None:
    tally = Tally({ROWS: RESULT}, family=1)
    assert (tally.nodeids([ROWS]), tally.kernels([ROWS])) == ([TEST], {TEST: ["rows"]})
    outcome = PairOutcome(timers={ROWS: dict(announced)}, tests=dict.fromkeys(SIDES, collected))
    tally.take(outcome, {"base": report(*base), "copy": report(), "work": report()})
    assert tally.left() == []
    assert tally.time(ROWS).problem == why


def test_all_kernels_in_question_of_a_test_are_asked_for_together() -> None:
    call = CaseResult(Case("ops", "call", "forward", "test_ops.py::test_call"))
    tracks = {ROWS: RESULT, COLUMNS: RESULT, TimeId("ops", "call/forward", "device_time_us"): call}
    assert Tally(tracks).kernels(list(tracks)) == {TEST: ["rows", "columns"]}


def test_a_host_time_has_no_pairs_beyond_those_of_its_device_time() -> None:
    case = CaseResult(Case("ops", "norm", "forward", TEST), "inputs")
    device, host, alone = (
        TimeId("ops", key, metric)
        for key, metric in [
            ("norm/forward", "device_time_us"),
            ("norm/forward", "host_time_us"),
            ("rope/forward", "host_time_us"),
        ]
    )
    tally = Tally(dict.fromkeys([device, host, alone], case), family=3)
    assert tally.left() == [device, host, alone]
    tally.times[device].give_up("decided, for this test")
    assert tally.left([host]) == []
    assert tally.left() == [alone]
    assert "device time" in tally.time(host).problem
