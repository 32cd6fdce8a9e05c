"""What is written reads back the same, whatever the names, and reads well."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from perfguard.model.records import Baseline, CaseBaseline, Entry, Provenance, TimedEntry
from perfguard.model.records.baseline import as_stored
from perfguard.store.baseline_form import CASE_FIELDS, parse, render

PATH = Path("x.yaml")

odd = st.sampled_from(
    ["*x", "&x", "#", "a #b", "a: b", "a::b", "[1]", "{a}", "'", '"', "\\", "- a", "? a", "true", "Null", "~", "1",
     "1e5", ".nan", "<<", "=", "---", "...", "%", "@a", "`", "|", ">", "!t", " a ", "", "é", "漢字", "😀", "\u2028",
     "\x85", "\x7f", "\ufeff", "\t", "\n", "a\r\nb", "\x00", "x" * 1100, "a, b", "2026-11-20", "0o7"]
)  # fmt: skip
texts = st.one_of(odd, st.text(max_size=12), st.builds("{}{}".format, odd, odd))
names = st.one_of(texts, st.builds("quantize[{}]/forward".format, texts))
metrics = st.one_of(
    st.sampled_from(["launches", "device_time_us", "on", "recordings"]),
    st.text(max_size=8),
    odd.filter(lambda x: len(x) < 99),
).filter(lambda name: name not in CASE_FIELDS)
numbers = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(-1e300, 1e300))
times = st.floats(1e-6, 1e11)
parts = st.dictionaries(
    st.one_of(st.sampled_from(["rows", "rows/2", "rows@1", "groups", "call"]), odd.filter(lambda x: len(x) < 99)),
    st.one_of(st.integers(0, 3), st.sampled_from([0.0, 128.0, 76.5, "none", "1e2"]), texts),
    max_size=5,
)
entries: st.SearchStrategy[Entry] = st.one_of(
    numbers,
    texts,
    parts,
    st.lists(texts, max_size=12),
    st.builds(
        TimedEntry, sessions=st.lists(times, min_size=1, max_size=8), timer=texts, anchor=st.one_of(st.none(), times)
    ),
).map(as_stored)
optional = st.one_of(st.none(), texts)
provenances = st.builds(
    Provenance,
    torch=optional,
    driver=optional,
    commit=optional,
    power_limit_watts=st.one_of(st.none(), times),
    reason=texts,
)
cases = st.builds(
    CaseBaseline,
    entries=st.dictionaries(metrics, entries, min_size=1, max_size=6),
    inputs=texts,
    recording=st.sampled_from(["", "1a2b3c4"]),
)
baselines = st.builds(
    Baseline,
    hardware=st.sampled_from(["nvidia-h200", "cpu"]),
    suite=st.just("fp8"),
    recordings=st.fixed_dictionaries({"1a2b3c4": provenances}),
    cases=st.dictionaries(names, cases, min_size=1, max_size=3),
)


def read(text: str, baseline: Baseline) -> Baseline:
    return parse(text.encode("utf-8"), PATH, baseline.hardware, baseline.suite)


@settings(max_examples=300)
@given(baseline=baselines)
def test_what_is_written_reads_back_the_same(baseline: Baseline) -> None:
    text = render(baseline)
    assert read(text, baseline) == baseline
    assert render(read(text, baseline)) == text


@given(baseline=baselines)
def test_other_yaml_readers_agree_on_cases_and_metrics(baseline: Baseline) -> None:
    loaded = yaml.safe_load(render(baseline))
    assert loaded["cases"].keys() == baseline.cases.keys()
    for key, case in baseline.cases.items():
        read = loaded["cases"][key]
        entries = {metric: entry for metric, entry in read.items() if metric not in CASE_FIELDS} | read.get("facts", {})
        assert entries.keys() == case.entries.keys()
        for metric, entry in case.entries.items():
            if not isinstance(entry, TimedEntry):
                assert entries[metric] == entry


def test_layout() -> None:
    baseline = Baseline(
        hardware="nvidia-h200",
        suite="fp8",
        recordings={
            "2b3c4d5": Provenance(torch="2.12.0", commit="2b3c4d5", reason="two stages, #412"),
            "1a2b3c4": Provenance(torch="2.11.0", toolkit="13.0", power_limit_watts=700.0, recorded="2026-11-20"),
        },
        cases={
            "quantize[64x48-*]/forward": CaseBaseline(
                entries={
                    "launches": 2,
                    "device_time_us": TimedEntry(sessions=[61.23456, 61.0], timer="graph-cold", anchor=59.98765),
                    "collectives": ["all_reduce tp", "1"],
                    "contract": "float8_e4m3fn[48,64] strides (1,64); float32[1,64] strides (64,64)",
                    "grids": {"rows": "1 x (4,)", "columns": 2},
                    "path": "triton",
                    "residue_places": {},
                    "share": 0.123456,
                    "tiny": 1e-7,
                    "peak_memory_bytes": 85196800,
                },
                inputs="bfloat16[64,48]",
                recording="2b3c4d5",
            ),
            "a b/forward": CaseBaseline(entries={"launches": 1}, recording="1a2b3c4"),
        },
    )
    assert (
        render(baseline)
        == """\
schema: 3
hardware: nvidia-h200
recordings:
  1a2b3c4: {torch: 2.11.0, toolkit: '13.0', power_limit_watts: 700.0, recorded: '2026-11-20'}
  2b3c4d5: {torch: 2.12.0, commit: 2b3c4d5, reason: 'two stages, #412'}
cases:
  a b/forward:
    facts: {launches: 1}
    recording: 1a2b3c4

  quantize[64x48-*]/forward:
    collectives: [all_reduce tp, '1']
    contract: float8_e4m3fn[48,64] strides (1,64); float32[1,64] strides (64,64)
    device_time_us: {timer: graph-cold, sessions: [61.23, 61.0], anchor: 59.99}
    grids: {rows: '1 x (4,)', columns: 2}
    facts: {launches: 2, path: triton, peak_memory_bytes: 85196800, residue_places: {}, share: 0.1235, tiny: 1.0e-07}
    inputs: bfloat16[64,48]
    recording: 2b3c4d5

...
"""
    )


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (85196801, 85196801),
        (123456.0, 123456.0),
        (123456.7, 123500.0),
        ({"a": 123456.0, "b": 0.123456, "c": "1.23456"}, {"a": 123456.0, "b": 0.1235, "c": "1.23456"}),
        # An anchor that is the level is not written.
        (TimedEntry([50.0, 50.04, 50.1], "t", anchor=50.041), TimedEntry([50.0, 50.04, 50.1], "t")),
        (TimedEntry([50.0, 50.04, 50.1], "t", anchor=50.0), TimedEntry([50.0, 50.04, 50.1], "t", anchor=50.0)),
    ],
)
def test_numbers_keep_four_digits_unless_they_are_whole(value: Entry, stored: Entry) -> None:
    assert as_stored(value) == stored
