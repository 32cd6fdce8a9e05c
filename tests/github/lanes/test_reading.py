"""Reports of strangers: rejected with a reason, or parsed with bad cases refused one by one; nothing else happens."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfguard.github.lanes.stranger_report import Received, read_report_of_stranger, receive
from perfguard.model.errors import LaneError
from perfguard.model.records import dump_report
from tests.github.api.fake.world import sha
from tests.github.lanes.reports import SLUG, archive, compared

HONEST = compared({"f": 50.0, "g": 50.0}, fresh={"f": [50.0, 50.1, 50.0]})


def edited(**fields: Any) -> bytes:
    return json.dumps(json.loads(dump_report(HONEST)) | fields).encode()


def with_reading(text: str) -> bytes:
    """The report with the value of f's time written as `text`."""
    data = json.loads(dump_report(HONEST))
    data["results"][0]["readings"][1]["value"] = "HERE"
    return json.dumps(data).replace('"HERE"', text).encode()


def refusal(data: bytes) -> str:
    with pytest.raises(LaneError) as refused:
        read_report_of_stranger(data)
    return str(refused.value)


def received(data: bytes) -> Received:
    return read_report_of_stranger(data)


def test_an_honest_report_arrives_whole() -> None:
    found = receive(SLUG, archive(HONEST), sha("head"))
    assert found.report == HONEST
    assert (found.refused, found.warnings) == ([], [])


def test_row_31_another_schema_and_a_cut_report_are_refused_with_the_reason() -> None:
    assert "report schema 2, this perfguard reads 1" in refusal(edited(schema=2))
    assert "report schema None" in refusal(b"{}")
    assert "no JSON" in refusal(dump_report(HONEST)[:-40])
    assert "no perfguard report" in refusal(edited(extra=1))
    assert "no perfguard report" in refusal(b"[]")


@pytest.mark.parametrize("text", ["null", "-1.0", "0", "1e308", "true", '"50"', "[]", "1e13", "-0.0", "1e-300"])
def test_row_32_a_value_that_is_no_time_costs_its_case_only(text: str) -> None:
    found = received(with_reading(text))
    assert [(refused.name, refused.reason[:13]) for refused in found.refused] == [("f/forward", "invalid value")]
    assert [result.case.name for result in found.report.results] == ["g"]


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity"])
def test_row_32_a_bare_token_that_is_no_json_rejects_the_lane(token: str) -> None:
    assert f"{token} is no JSON" in refusal(with_reading(token))


def test_row_34_depth_digits_repeats_and_bytes_reject_the_lane() -> None:
    assert refusal(b"[" * 200_000) == "nested too deeply"
    assert refusal(b'{"a":' * 200_000) == "nested too deeply"
    assert "no JSON" in refusal(with_reading("1" * 5000))
    assert "the key 'schema' twice" in refusal(b'{"schema": 1, ' + dump_report(HONEST).strip()[1:])
    assert "no UTF-8" in refusal(edited(perfguard="HERE").replace(b"HERE", b"\xff\xfe"))
    assert refusal(b"\xef\xbb\xbf" + dump_report(HONEST))
    assert refusal(edited(perfguard="HERE").replace(b"HERE", rb"\ud800"))


def test_row_34_nesting_inside_a_case_rejects_the_lane_or_the_case() -> None:
    data = edited(stale="HERE").replace(b'"HERE"', b"[" * 100_000 + b"]" * 100_000)
    assert refusal(data) == "nested too deeply"


def test_numbers_that_nobody_reads_are_bounded_too() -> None:
    for place, value in (("promise", 1e300), ("rejected_blocks", -1), ("blocks", [1e300])):
        data = json.loads(dump_report(HONEST))
        data["results"][0]["readings"][1][place] = value
        found = received(json.dumps(data).encode())
        assert [refused.name for refused in found.refused] == ["f/forward"], place


def test_long_texts_and_twins_are_refused() -> None:
    data = json.loads(dump_report(HONEST))
    data["results"].append(data["results"][1])
    data["results"][0]["case"]["nodeid"] = "x" * 20_000
    data["results"].append({"case": 5})
    found = received(json.dumps(data).encode())
    assert [refused.name for refused in found.refused] == ["f/forward", "g/forward", "case 4"]
    assert "20,000 characters" in found.refused[0].reason
    assert "twice" in found.refused[1].reason
    assert "no perfguard report" in refusal(edited(hardware={**data["hardware"], "name": "x" * 20_000}))
    assert "names no folder" in refusal(edited(hardware={**data["hardware"], "target": "../../x"}))


def test_no_more_cases_than_the_limit() -> None:
    data = json.loads(dump_report(HONEST))
    assert "no perfguard report" in refusal(edited(results=[data["results"][0]] * 5001))


def test_a_fresh_process_cannot_vote_twice() -> None:
    data = json.loads(dump_report(HONEST))
    data["fresh"][0]["results"] *= 5
    assert len(received(json.dumps(data).encode()).report.fresh[0].results) == 1


def with_pair(**fields: Any) -> Received:
    """The report with `fields` in the second process pair of f; text for values that Python would not write so."""
    data = json.loads(dump_report(HONEST))
    data["pairings"][0]["cases"][0]["times"][0]["readings"][1] |= fields
    return received(json.dumps(data).encode())


@pytest.mark.parametrize(
    "fields",
    [
        {"change": 1e300}, {"change": 13.9}, {"change": -13.9}, {"control": 14}, {"control": None}, {"change": "0"},
        {"base_us": 0}, {"work_us": -1.0}, {"work_us": 1e12}, {"base_mhz": 0.5}, {"work_mhz": 1e6},
        {"pair": 0}, {"pair": 1}, {"pair": 3}, {"pair": 1.5}, {"pair": 10**9},
    ],
    ids=str,
)  # fmt: skip
def test_a_process_pair_that_cannot_be_costs_the_pairs_of_its_case_only(fields: dict[str, Any]) -> None:
    found = with_pair(**fields)
    assert [(refused.name, refused.reason[:28]) for refused in found.refused] == [
        ("f/forward", "process pairs: invalid value")
    ]
    assert [case.key for case in found.report.pairings[0].cases] == ["g/forward"]
    assert found.report.results == HONEST.results


def test_process_pairs_may_be_large_and_far_apart() -> None:
    data = json.loads(dump_report(HONEST))
    data["pairings"][0]["cases"][0]["times"][0]["readings"][3] |= {"pair": 200, "change": 13.8, "base_mhz": 345.0}
    found = received(json.dumps(data).encode())
    assert found.refused == []
    assert found.report.pairings[0].cases[0].times[0].readings[3].pair == 200


def test_an_invalid_paired_case_is_named_as_far_as_it_can_be() -> None:
    data = json.loads(dump_report(HONEST))
    first, second = data["pairings"][0]["cases"]
    many = {**first, "times": [{"metric": f"time_{number}"} for number in range(201)]}
    twice = {**first, "times": first["times"] * 2}
    pairs = {**first, "times": [{"metric": "t", "readings": first["times"][0]["readings"][:1] * 51}]}
    long = {**first, "problem": "x" * 20_000}
    other = {**first, "base": second["base"]}
    wild = {**first, "base": {**first["base"], "seconds": 1e300}}
    data["pairings"][0]["cases"] = [
        {"key": 5},
        many,
        twice,
        pairs,
        long,
        other,
        wild,
        {**first, "key": ""},
        second,
        second,
    ]
    found = received(json.dumps(data).encode())
    said = [refused.reason.removeprefix("process pairs: invalid value: ") for refused in found.refused]
    names = ["paired case 1", *["f/forward"] * 6, "paired case 8", "g/forward"]
    assert [refused.name for refused in found.refused] == names
    assert said[1:] == [
        "201 times, 200 at most",
        "a time twice in one case, or one without a metric",
        "t: 51 process pairs, 50 at most",
        "a text of 20,000 characters, 16,384 at most",
        "another case at the base",
        "seconds is 1e+300",
        "an empty name",
        "the case twice in one report",
    ]
    assert [case.key for case in found.report.pairings[0].cases] == ["g/forward"]


def test_times_of_the_base_are_not_taken() -> None:
    data = json.loads(dump_report(HONEST))
    data["pairings"][0]["cases"][0]["base"] = data["results"][0]
    base = received(json.dumps(data).encode()).report.pairings[0].cases[0].base
    assert base is not None
    assert [reading.metric for reading in base.readings] == ["launches"]


def test_a_run_without_a_base_says_why_it_paired_nothing() -> None:
    pairing = {"base": "", "problem": "this clone is shallow"}
    for base in (None, {"problem": "this clone is shallow"}):
        found = received(edited(base=base, pairings=[pairing])).report
        assert [each.problem for each in found.pairings] == ["this clone is shallow"]
    cases = json.loads(dump_report(HONEST))["pairings"][0]["cases"]
    assert "another base than none" in refusal(edited(base=None, pairings=[pairing | {"cases": cases}]))


def test_what_contradicts_itself_about_the_base_is_no_report() -> None:
    assert "process pairs with another base than none" in refusal(edited(base=None))
    assert "process pairs with another base" in refusal(edited(base={"commit": sha("other")}))
    assert "equal to a base that it does not name" in refusal(edited(base={"equal": True}, pairings=[]))
    for base in (
        {"commit": "HEAD"},
        {"commit": ""},
        {"commit": sha("base") + "\n"},
        {"commit": sha("base"), "tree": 1},
        {"problem": 5},
    ):
        assert "no perfguard report" in refusal(edited(base=base, pairings=[]))
    data = json.loads(dump_report(HONEST))["pairings"][0]
    for fields in ({"cases": [{}] * 5001}, {"device": -1}, {"pairs": -1}, {"base": "x"}, {"more": 1}):
        assert "no perfguard report" in refusal(edited(pairings=[data | fields]))
    assert "process pairs of more than 5,000 cases" in refusal(edited(pairings=[data | {"cases": [{}] * 2501}] * 2))


@pytest.mark.parametrize(
    ("fields", "lane", "said"),
    [
        ({"commit": sha("other")[:12]}, SLUG, "measured"),
        ({"commit": None}, SLUG, "measured ''"),
        ({"commit": sha("head")[:3]}, SLUG, "measured"),
        ({}, "amd-mi300x", "the artifact of amd-mi300x holds a report of 'nvidia-h200'"),
    ],
)
def test_row_37_a_report_of_something_else_is_refused(fields: dict[str, Any], lane: str, said: str) -> None:
    with pytest.raises(LaneError, match=said):
        receive(lane, archive(edited(**fields)), sha("head"))


def test_row_37_a_report_names_no_pull_request() -> None:
    assert "unknown field `pull`" in refusal(edited(pull=8))


def test_the_file_is_named_after_the_hardware() -> None:
    with pytest.raises(LaneError, match=r"report-other\.json holds a report of 'nvidia-h200'"):
        receive(SLUG, archive(HONEST, "report-other.json"), sha("head"))


def test_changed_files_are_told_and_a_target_may_be_the_lane() -> None:
    hardware = msgspec.structs.replace(HONEST.hardware, target="cpu")
    dirty = msgspec.structs.replace(HONEST, hardware=hardware, commit=f"{sha('head')[:12]}+")
    found = receive("cpu", archive(dirty), sha("head"))
    assert found.warnings == ["cpu: tracked files of the checkout were changed before it was measured"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


FIELDS = ["results", "fresh", "hardware", "toolchain", "conditions", "stale", "commit", "started", "base", "pairings"]


@given(st.sampled_from(FIELDS), JSON)
@settings(max_examples=150, deadline=None)
def test_any_value_in_any_field_is_parsed_or_refused(name: str, value: object) -> None:
    with contextlib.suppress(LaneError):
        received(edited(**{name: value}))


@given(st.sampled_from(["key", "base", "times", "problem"]), JSON)
@settings(max_examples=150, deadline=None)
def test_any_value_in_a_paired_case_is_parsed_or_costs_it(name: str, value: object) -> None:
    data = json.loads(dump_report(HONEST))
    data["pairings"][0]["cases"][0][name] = value
    with contextlib.suppress(LaneError):  # NaN is no JSON
        found = received(json.dumps(data).encode())
        assert len(found.refused) + len(found.report.pairings[0].cases) == 2


@given(st.integers(0, 6000), st.binary(min_size=1, max_size=6))
@settings(max_examples=150, deadline=None)
def test_any_bytes_in_a_report_are_parsed_or_refused(place: int, noise: bytes) -> None:
    data = dump_report(HONEST)
    with contextlib.suppress(LaneError):
        received(data[:place] + noise + data[place + len(noise) :])
