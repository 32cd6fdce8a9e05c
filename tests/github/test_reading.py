"""Untrusted reports: refused with a reason, or read with bad cases refused one by one. Nothing else happens."""

from __future__ import annotations

import contextlib
import io
import json
import math
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfguard.github.lanes.baselines_at_commit import BaselineSet
from perfguard.github.lanes.lane_views import Reference, judge_lanes
from perfguard.github.lanes.untrusted_report import Received, read_untrusted_report, receive, unpack
from perfguard.model.errors import LaneError
from perfguard.model.records import Report, dump_report
from tests.github.fake import sha
from tests.github.reports import SLUG, archive, compared

HONEST = compared({"f": 50.0, "g": 50.0}, fresh={"f": [50.0, 50.1, 50.0]})
NAME = f"report-{SLUG}.json"


def plain() -> Any:
    """The honest report as plain JSON."""
    return json.loads(dump_report(HONEST))


def edited(**fields: Any) -> bytes:
    return json.dumps(plain() | fields).encode()


def read(data: Any) -> Received:
    return read_untrusted_report(data if isinstance(data, bytes) else json.dumps(data).encode())


def refusal(data: bytes, reader: Callable[[bytes], object] = read_untrusted_report) -> str:
    with pytest.raises(LaneError) as refused:
        reader(data)
    return str(refused.value)


def received(given: Report | bytes, lane: str = SLUG, name: str = NAME) -> Received:
    return receive(lane, archive(given, name), sha("head"))


# -- the archive -------------------------------------------------------------------------------------------------------


def packed(*names: str | zipfile.ZipInfo, data: bytes = b"{}") -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as opened:
        for name in names:
            opened.writestr(name, data, compress_type=zipfile.ZIP_DEFLATED)
    return made.getvalue()


def damaged(data: bytes, *changes: tuple[int, bytes]) -> bytes:
    """The archive with `changes` at offsets from its local and, where given twice, its central header."""
    made = bytearray(data)
    for start, (offset, new) in zip((b"PK\x03\x04", b"PK\x01\x02"), changes, strict=False):
        place = made.index(start) + offset
        made[place : place + len(new)] = new
    return bytes(made)


def link() -> zipfile.ZipInfo:
    made = zipfile.ZipInfo(NAME)
    made.external_attr = (stat.S_IFLNK | 0o777) << 16
    return made


ARCHIVES = {
    "empty": (b"", "no readable zip file"),
    "no zip": (b"not a zip", "no readable zip file"),
    "cut": (packed(NAME)[:-30], "no readable zip file"),
    "damaged": (damaged(packed(NAME, data=bytes(range(256)) * 8), (60, b"\xff\x00\xff")), "no readable zip file"),
    "encrypted": (damaged(packed(NAME), (6, b"\x01"), (8, b"\x01")), "encrypted"),
    "no file": (packed(), "holds 0 files"),
    "many files": (packed(*(f"a{number}" for number in range(2000))), "holds 2,000 files"),
    "two files": (packed(NAME, "report-other.json"), "holds 2 files"),
    "above": (packed("../../report-x.json"), "no plain file"),
    "absolute": (packed("/report-x.json"), "no plain file"),
    "below": (packed("a/report-x.json"), "no plain file"),
    "a folder": (packed("report-..json/"), "no plain file"),
    "a hidden end": (packed("report-x.json_.exe").replace(b".json_", b".json\0"), "no plain file"),
    "a link": (packed(link(), data=b"/etc/passwd"), "no plain file"),
    "a bomb": (packed(NAME, data=bytes(200_000)), "unpacks to more than 100,000 bytes"),
    "a bomb that lies": (damaged(packed(NAME, data=bytes(200_000)), (22, b"\xe8\3\0\0"), (24, b"\xe8\3\0\0")), "zip"),
}


@pytest.mark.parametrize("what", ARCHIVES)
def test_an_archive_that_is_not_one_small_report_is_refused(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data, said = ARCHIVES[what]
    assert said in refusal(data, lambda data: unpack(data, 100_000))
    assert list(tmp_path.iterdir()) == []


@given(st.binary(max_size=400), st.integers(0, 300), st.booleans())
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_unpacked_or_refused(noise: bytes, place: int, whole: bool) -> None:
    data = archive(b'{"a": 1}')
    with contextlib.suppress(LaneError):
        unpack(noise if whole else data[:place] + noise + data[place + len(noise) :], 100_000)


# -- what it is of -----------------------------------------------------------------------------------------------------


def test_an_honest_report_arrives_whole() -> None:
    assert received(HONEST) == Received(HONEST)


@pytest.mark.parametrize(
    ("fields", "lane", "name", "said"),
    [
        ({"commit": sha("other")[:12]}, SLUG, NAME, "measured"),
        ({"commit": None}, SLUG, NAME, "measured ''"),
        ({"commit": sha("head")[:3]}, SLUG, NAME, "measured"),
        ({}, "amd-mi300x", NAME, "the artifact of amd-mi300x holds a report of 'nvidia-h200'"),
        ({}, SLUG, "report-other.json", r"report-other\.json holds a report of 'nvidia-h200'"),
    ],
)
def test_a_report_of_something_else_is_refused(fields: dict[str, Any], lane: str, name: str, said: str) -> None:
    with pytest.raises(LaneError, match=said):
        received(edited(**fields), lane, name)


def test_changed_files_are_a_warning_and_a_target_may_be_the_lane() -> None:
    hardware = msgspec.structs.replace(HONEST.hardware, target="cpu")
    dirty = msgspec.structs.replace(HONEST, hardware=hardware, commit=f"{sha('head')[:12]}+")
    views = judge_lanes({"cpu": received(dirty, "cpu")}, Reference(BaselineSet(), commit=sha("fork-point")))
    assert views.warnings == ["cpu: tracked files of the checkout were changed before it was measured"]


# -- the whole ---------------------------------------------------------------------------------------------------------


def with_time(text: str) -> bytes:
    """The report with the value of f's time written as `text`."""
    data = plain()
    data["results"][0]["readings"][1]["value"] = "HERE"
    return json.dumps(data).replace('"HERE"', text).encode()


CASE = plain()["results"][0]
PAIRING = plain()["pairings"][0]
REPORTS = {
    "a later schema": (edited(schema=2), "report schema 2, this perfguard reads 1"),
    "no schema": (b"{}", "report schema None"),
    "a list": (b"[]", "report schema None"),
    "cut": (dump_report(HONEST)[:-40], "no JSON"),
    "NaN": (with_time("NaN"), "NaN is no JSON"),
    "-Infinity": (with_time("-Infinity"), "-Infinity is no JSON"),
    "many digits": (with_time("1" * 5000), "no JSON"),
    "deep lists": (b"[" * 200_000, "nested too deeply"),
    "deep objects": (b'{"a":' * 200_000, "nested too deeply"),
    "deep in a field": (edited(stale="HERE").replace(b'"HERE"', b"[" * 10**5 + b"]" * 10**5), "nested too deeply"),
    "repeated keys": (b'{"schema": 1, ' + dump_report(HONEST).strip()[1:], "a key twice"),
    "no UTF-8": (edited(perfguard="HERE").replace(b"HERE", b"\xff\xfe"), "no UTF-8"),
    "half a character": (edited(perfguard="HERE").replace(b"HERE", rb"\ud800"), "no encoding can hold"),
    "a byte order mark": (b"\xef\xbb\xbf" + dump_report(HONEST), "no JSON"),
    "a long text": (edited(hardware={**plain()["hardware"], "name": "x" * 20_000}), "a text of 20,000 characters"),
    "another folder": (edited(hardware={**plain()["hardware"], "target": "../../x"}), "names no folder"),
    "too many cases": (edited(results=[{}] * 5_001), "5,001 items in a list, 5,000 at most; merge tests"),
    "no cases": (edited(results={}), "no list"),
    "no session": (edited(fresh=[5]), "no perfguard report"),
    "answers without a base": (edited(base=None), "answers of another base than none"),
    "answers of no base": (edited(base=None, pairings=[PAIRING | {"base": ""}]), "answers of another base"),
    "answers of another base": (edited(base={"commit": sha("other")}), "answers of another base"),
    "a base of a record that is no commit": (edited(bases={"abc": {"commit": "main"}}), "its base 'main' is no commit"),
    "bases that are none": (edited(bases=["abc"]), "no perfguard report"),
    "many bases": (edited(bases={str(n): {} for n in range(10_001)}), "10,001 items of bases"),
    "variables that are none": (edited(invocation={"variables": {"TRITON_INTERPRET": 1}}), "no perfguard report"),
    "a long variable": (edited(invocation={"variables": {"A": "x" * 20_000}}), "a text of 20,000 characters"),
    "equal to nothing": (edited(base={"equal": True}, pairings=[]), "equal to a base that it does not name"),
    "a base that is no commit": (edited(base={"commit": "HEAD"}, pairings=[]), "is no commit"),
    "a base of two lines": (edited(base={"commit": sha("base") + "\n"}, pairings=[]), "is no commit"),
    "a problem that is none": (edited(base={"problem": 5}, pairings=[]), "no perfguard report"),
    "too many paired cases": (edited(pairings=[PAIRING | {"cases": [{}] * 5_001}]), "5,001 items in a list"),
    "a number that no float holds": (edited(pairings=[PAIRING | {"pairs": 10**400}]), f"pairs is 1{'0' * 23}"),
    "a device below 0": (edited(pairings=[PAIRING | {"device": -1}]), "device is -1"),
    "a negative count": (edited(pairings=[PAIRING | {"pairs": -1}]), "pairs is -1"),
}


@pytest.mark.parametrize("what", REPORTS)
def test_a_report_that_cannot_be_read_is_refused(what: str) -> None:
    data, said = REPORTS[what]
    assert said in refusal(data)


def test_as_many_cases_are_read_as_twice_those_of_the_base() -> None:
    many = edited(results=[{}] * 12_000, pairings=[])
    assert len(read_untrusted_report(many, 6_000).refused) == 12_000
    assert "12,000 items in a list, 11,998 at most" in refusal(many, lambda data: read_untrusted_report(data, 5_999))


def test_a_run_without_a_base_says_why_it_paired_nothing() -> None:
    pairing = {"base": "", "problem": "this clone is shallow"}
    for base in (None, {"problem": "this clone is shallow"}):
        found = read(edited(base=base, pairings=[pairing])).report
        assert [each.problem for each in found.pairings] == ["this clone is shallow"]


# -- its cases ---------------------------------------------------------------------------------------------------------


def costs_f(found: Received) -> str:
    """The reason why f is refused; g is not."""
    assert [refused.name for refused in found.refused] == ["f/forward"]
    assert [result.case.name for result in found.report.results] == ["g"]
    return found.refused[0].reason


@pytest.mark.parametrize(
    "text", ["null", "-1.0", "0", "1e308", "1e999", "true", '"50"', "[]", "1e13", "-0.0", "1e-300"]
)
def test_a_value_that_is_no_time_costs_its_case_only(text: str) -> None:
    assert costs_f(read(with_time(text))).startswith("invalid value: ")


@pytest.mark.parametrize(
    ("where", "fields", "said"),
    [
        ("reading", {"promise": 1e300}, "promise is 1e+300"),
        ("reading", {"rejected_blocks": -1}, "rejected_blocks is -1"),
        ("reading", {"blocks": [1e300]}, "blocks is 1e+300"),
        ("reading", {"metric": ""}, "a reading without a metric"),
        ("reading", {"metric": "launches"}, "a metric twice"),
        ("reading", {"rival": 1e-300}, "its rival's 1e-300 is no time"),
        ("reading", {"rival": 1e300}, "rival is 1e+300"),
        ("reading", {"value": 0.01}, "device_time_us: 0.01 µs, but the median of its blocks is 50 µs"),
        ("reading", {"blocks": [0.01, 50.0, 0.02]}, "device_time_us: 50 µs, but the median of its blocks is 0.02 µs"),
        ("reading", {"covers": ["x"] * 10_001}, "10,001 items of covers"),
        ("reading", {"note": "\ud800"}, "no encoding can hold"),
        ("case", {"nodeid": "x" * 20_000}, "a text of 20,000 characters"),
        ("reading", {"value": {"rank 0": "x" * 1_000_001}}, "a text of 1,000,001 characters"),
        ("reading", {"value": {"x" * 20_000: 1}}, "a text of 20,000 characters"),
        ("case", {"suite": ""}, "an empty name"),
        ("result", {"seconds": 1e300}, "seconds is 1e+300"),
        ("result", {"seconds": 10**400}, f"seconds is 1{'0' * 23}"),
        ("result", {"verdicts": [{"word": "PASS"}] * 201}, "more than 200"),
    ],
)
def test_a_value_that_no_measurement_has_costs_its_case_only(where: str, fields: dict[str, Any], said: str) -> None:
    data = plain()
    result = data["results"][0]
    {"reading": result["readings"][1], "case": result["case"], "result": result}[where].update(fields)
    assert said in costs_f(read(data))


def test_a_step_may_launch_ten_thousand_kernels_on_each_rank() -> None:
    """Its kernels are one text a rank; a verdict on them has both sides."""
    data = plain()
    value = {f"rank {rank}": "; ".join(["ncclDevKernel_AllGather_RING_LL"] * 10_000) for rank in range(2)}
    result = data["results"][0]
    result["readings"].append({"metric": "kernels", "unit": "text", "value": value, "gated": False})
    result["verdicts"] = [{"word": "PASS", "metric": "kernels", "before": value, "after": value}]
    found = read(data)
    assert not found.refused
    assert found.report.results[0].readings[-1].value == value


def test_twins_and_cases_without_a_name_are_refused() -> None:
    data = plain()
    data["results"] += [data["results"][1], {"case": 5}, 7]
    data["fresh"][0]["results"] *= 5
    found = read(data)
    assert [refused.name for refused in found.refused] == ["g/forward", "case 4", "case 5"]
    assert "twice" in found.refused[0].reason
    assert len(found.report.fresh[0].results) == 1  # a fresh process cannot vote twice


FIRST, SECOND = PAIRING["cases"]
READINGS = FIRST["times"][0]["readings"]
PAIRED = {
    "no name": ({"key": 5}, "case 1", ""),
    "an empty name": (FIRST | {"key": ""}, "case 1", "an empty name"),
    "many times": (FIRST | {"times": [{"metric": f"t{number}"} for number in range(201)]}, "f/forward", "too many"),
    "a time twice": (FIRST | {"times": FIRST["times"] * 2}, "f/forward", "a time twice in one case"),
    "many pairs": (
        FIRST | {"times": [{"metric": "t", "readings": [READINGS[0] | {"pair": each} for each in range(1, 52)]}]},
        "f/forward", "t: more than 50 process pairs",
    ),
    "a long text": (FIRST | {"problem": "x" * 20_000}, "f/forward", "a text of 20,000 characters"),
    "another case at the base": (FIRST | {"base": SECOND["base"]}, "f/forward", "another case at the base"),
    "a wild base": (FIRST | {"base": FIRST["base"] | {"seconds": 1e300}}, "f/forward", "seconds is 1e+300"),
    "a twin": (SECOND, "g/forward", "the case twice in one report"),
    **{
        str(fields): (FIRST | {"times": [FIRST["times"][0] | {"readings": [READINGS[0], READINGS[1] | fields]}]},
                      "f/forward", said)
        for fields, said in (
            ({"base_us": 0.01}, "pair 2 contradicts itself: 0.01 -> 50.05 µs is not +0.1 %"),
            ({"change": 1.0}, "pair 2 contradicts itself: 50 -> 50.05 µs is not +171.8 %"),
            ({"base_us": 0.01, "work_us": 0.01}, "pair 2 contradicts the run: 0.01 µs, and 50 µs alone"),
        )
    },
    **{
        str(fields): (FIRST | {"times": [FIRST["times"][0] | {"readings": [READINGS[0], READINGS[1] | fields]}]},
                      "f/forward", "")
        for fields in (
            {"change": 13.9}, {"change": -13.9}, {"control": 14}, {"control": None}, {"change": "0"}, {"base_us": 0},
            {"work_us": -1.0}, {"work_us": 1e13}, {"base_mhz": 0.5}, {"work_mhz": 1e6}, {"pair": 0}, {"pair": 1},
            {"pair": 1.5}, {"pair": 201},
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("what", PAIRED)
def test_process_pairs_that_cannot_be_cost_the_pairs_of_their_case_only(what: str) -> None:
    case, name, said = PAIRED[what]
    cases = [SECOND, case] if what == "a twin" else [case, SECOND]
    found = read(edited(pairings=[PAIRING | {"cases": cases}]))
    (refused,) = found.refused
    assert refused.name == name
    assert refused.reason.startswith("process pairs: invalid value: ")
    assert said in refused.reason
    assert [each.key for each in found.report.pairings[0].cases] == ["g/forward"]
    assert found.report.results == HONEST.results


def test_process_pairs_may_be_large_and_far_apart() -> None:
    data = plain()
    paired = data["pairings"][0]["cases"][0]
    paired["times"][0]["readings"][3] |= {
        "pair": 200, "change": 2.0, "work_us": 50 * math.exp(2.0), "base_mhz": 345.0
    }  # fmt: skip
    found = read(data)
    assert found.refused == []
    assert found.report.pairings[0].cases[0].times[0].readings[3].pair == 200


# -- anything ----------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ["results", "fresh", "hardware", "toolchain", "conditions", "stale", "commit", "started", "base", "pairings"]


@given(st.sampled_from(FIELDS), JSON)
@settings(max_examples=150, deadline=None)
def test_any_value_in_any_field_is_read_or_refused(name: str, value: object) -> None:
    with contextlib.suppress(LaneError):
        read(edited(**{name: value}))


@given(st.sampled_from(["key", "base", "times", "problem"]), JSON)
@settings(max_examples=150, deadline=None)
def test_any_value_in_a_paired_case_is_read_or_costs_it(name: str, value: object) -> None:
    data = plain()
    data["pairings"][0]["cases"][0][name] = value
    with contextlib.suppress(LaneError):  # NaN is no JSON
        found = read(data)
        assert len(found.refused) + len(found.report.pairings[0].cases) == 2


@given(st.integers(0, 6000), st.binary(min_size=1, max_size=6))
@settings(max_examples=150, deadline=None)
def test_any_bytes_in_a_report_are_read_or_refused(place: int, noise: bytes) -> None:
    data = dump_report(HONEST)
    with contextlib.suppress(LaneError):
        read(data[:place] + noise + data[place + len(noise) :])
