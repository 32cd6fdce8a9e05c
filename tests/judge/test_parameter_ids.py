"""Records of parametrised cases whose ids are places: a case put in front accuses nobody. Ids that hold an address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfguard.judge.case_verdicts import judge_case
from perfguard.judge.lane import Lane, key_of_record, unstable_id
from perfguard.judge.run_verdicts import find_stale
from perfguard.judge.update_plan import plan
from perfguard.model.records import (
    Baseline,
    Case,
    CaseBaseline,
    CaseResult,
    Hardware,
    Provenance,
    Reading,
    Value,
    Verdict,
    Word,
)
from perfguard.model.records.change import Change
from perfguard.model.units import Unit

HARDWARE = Hardware(slug="here", vendor="fake", name="Here", architecture="x1")
NOW = Provenance(torch="2.0", commit="1" * 12)


def recorded(**cases: tuple[str, int, str]) -> Baseline:
    """One file: id -> inputs, copies, and the code of the kernel."""
    stored = {
        f"rows[{name}]/forward": CaseBaseline({"copies": copies, "code": {"rows": code}}, inputs, "r")
        for name, (inputs, copies, code) in cases.items()
    }
    return Baseline("here", "area", {"r": Provenance(torch="2.0")}, stored)


def measured(name: str, inputs: str, copies: int, code: str = "a-1") -> CaseResult:
    parts: Value = {"rows": code}
    readings = [Reading("copies", Unit.COUNT, copies), Reading("code", Unit.TEXT, parts, gated=False, stored=True)]
    return CaseResult(Case("area", f"rows[{name}]", "forward"), inputs, readings=readings)


def lane(file: Baseline) -> Lane:
    return Lane(HARDWARE, NOW, [file])


def of_copies(result: CaseResult, file: Baseline) -> Verdict:
    return next(each for each in judge_case(result, lane(file), {}) if each.metric == "copies")


TWO = recorded(shape0=("f32[16,32]", 0, "a-1"), shape1=("f32[64,8]", 3, "a-2"))
IN_FRONT = [
    measured("shape0", "f32[8,8]", 9), measured("shape1", "f32[16,32]", 0), measured("shape2", "f32[64,8]", 3, "a-2")
]  # fmt: skip


def test_a_case_put_in_front_renames_the_others_and_accuses_nobody() -> None:
    words = [of_copies(result, TWO).word for result in IN_FRONT]
    assert words == [Word.METHOD_CHANGED, Word.PASS, Word.PASS]


def test_a_case_in_another_place_is_judged_by_its_own_record() -> None:
    worse = of_copies(measured("shape2", "f32[64,8]", 4, "a-2"), TWO)
    assert (worse.word, worse.before, worse.after) == (Word.CHANGED, 3, 4)


def test_of_equal_inputs_the_code_decides() -> None:
    kinds = recorded(way0=("f32[8]", 0, "a-1"), way1=("f32[8]", 3, "b-2"))
    assert of_copies(measured("way1", "f32[8]", 0, "a-1"), kinds).word is Word.PASS
    assert of_copies(measured("way2", "f32[8]", 3, "b-9"), kinds).word is Word.PASS  # half of a fingerprint is enough
    assert of_copies(measured("way0", "f32[8]", 1, "c-3"), kinds).word is Word.CHANGED  # its own, whose code is new
    alike = recorded(way0=("f32[8]", 0, "a-1"), way1=("f32[8]", 3, "a-1"))
    assert of_copies(measured("way2", "f32[8]", 5, "a-1"), alike).word is Word.NEW  # neither tells more than the other


def test_names_are_no_places() -> None:
    named = recorded(small=("f32[16]", 0, "a-1"), large=("f32[64]", 3, "a-2"))
    assert key_of_record(named, measured("small", "f32[64]", 3, "a-2")) == "rows[small]/forward"
    of_two = recorded(**{"64-shape0": ("f32[16]", 0, "a-1"), "32-shape0": ("f32[32]", 3, "a-2")})
    result = measured("64-shape1", "f32[32]", 3, "a-2")
    assert key_of_record(of_two, result) == "rows[64-shape1]/forward"  # the other parameter differs, too


def written(changes: Sequence[Change], file: Baseline) -> Mapping[str, tuple[object, str]]:
    """Key -> copies and inputs, as an update with all categories leaves them."""
    found: dict[str, tuple[object, str]] = {
        key: (case.entries.get("copies"), case.inputs) for key, case in file.cases.items()
    }
    for change in changes:
        if change.metric == "copies" and not change.refused:
            found[change.key] = (change.after, change.inputs)
    return found


def test_an_update_brings_records_to_their_places() -> None:
    judged = [
        CaseResult(each.case, each.inputs, readings=each.readings, verdicts=judge_case(each, lane(TWO), {}))
        for each in IN_FRONT
    ]
    changes = plan(lane(TWO), judged, {}, [], NOW)
    assert written(changes, TWO) == {
        "rows[shape0]/forward": (9, "f32[8,8]"),
        "rows[shape1]/forward": (0, "f32[16,32]"),
        "rows[shape2]/forward": (3, "f32[64,8]"),
    }
    for change in changes:  # what is in the file, so that it is not taken for edited
        case = TWO.cases.get(change.key)
        assert change.before == (None if case is None else case.entries.get(change.metric))
    assert {change.note for change in changes if change.key == "rows[shape2]/forward"} == {
        "was recorded as rows[shape1]/forward"
    }


def test_a_record_that_another_place_needs_is_not_stale() -> None:
    front_gone = [measured("shape0", "f32[64,8]", 3, "a-2")]
    where = lane(TWO)
    measured_ids = {each.id for each in front_gone}
    alone = find_stale(where, {"area"}, {"area": ["rows[shape0]"]}, measured_ids, set())
    assert [each.case for each in alone] == ["rows[shape1]/forward"]
    assert find_stale(where, {"area"}, {"area": ["rows[shape0]"]}, measured_ids | where.moved(front_gone), set()) == []


def test_an_id_with_an_address_is_not_recorded() -> None:
    result = measured("<x.Opaque object at 0x7fa6c7926050>", "f32[8]", 0)
    nothing = Baseline("here", "area")
    verdict = of_copies(result, nothing)
    assert (verdict.word, verdict.storable) == (Word.NEW, False)
    assert "ids=lambda each:" in verdict.reason
    judged = CaseResult(
        result.case, result.inputs, readings=result.readings, verdicts=[Verdict(Word.NEW, "copies", after=0)]
    )
    refused = plan(lane(nothing), [judged], {}, [], NOW)
    assert refused
    assert all("holds an address, 0x7fa6c7926050" in change.refused for change in refused)
    assert unstable_id("rows[0x10]/forward") == ""
