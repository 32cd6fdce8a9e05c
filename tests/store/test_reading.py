"""A baseline file that is not as perfguard wrote it gives one error with file, place and what was expected."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfguard.model.errors import BaselineError
from perfguard.model.records import Baseline, CaseBaseline, Provenance, TimedEntry
from perfguard.store.baseline_form import parse

# A file as docs/baselines.md shows it.
GOOD = """\
schema: 3
hardware: nvidia-h200
recordings:
  '1234567': {torch: 2.11.0, driver: 580.159.04, toolkit: '13.0', power_limit_watts: 700, commit: '1234567', recorded: '2026-11-20'}
cases:
  quantize[16640x5120-g16]/forward:
    device_time_us: {timer: graph-cold, sessions: [61.2, 61.3, 61.1, 61.2, 61.4]}
    kernel_launches: {rows: 1, columns: '2'}
    facts: {capturable: 'yes', launches: 1, peak_memory_bytes: 85196800}
    inputs: bfloat16[16640,5120]
    recording: '1234567'

...
"""  # noqa: E501
KEY = "quantize[16640x5120-g16]/forward"
ID = "'1234567'"


def read(text: str | bytes, folder: str = "nvidia-h200") -> Baseline:
    data = text.encode() if isinstance(text, str) else text
    return parse(data, Path("baselines/nvidia-h200/fp8.yaml"), folder, "fp8")


def test_the_example_of_the_design() -> None:
    recording = Provenance(
        torch="2.11.0", driver="580.159.04", toolkit="13.0", power_limit_watts=700, commit="1234567",
        recorded="2026-11-20",
    )  # fmt: skip
    entries = {
        "device_time_us": TimedEntry([61.2, 61.3, 61.1, 61.2, 61.4], "graph-cold"),
        "kernel_launches": {"rows": 1, "columns": "2"},
        "capturable": "yes",
        "launches": 1,
        "peak_memory_bytes": 85196800,
    }
    case = CaseBaseline({**entries}, "bfloat16[16640,5120]", "1234567")
    assert read(GOOD) == Baseline("nvidia-h200", "fp8", {"1234567": recording}, {KEY: case})


def test_metrics_of_earlier_versions_are_left_out() -> None:
    """Their readings are gone, and a record of a metric that nobody reads would be a finding."""
    assert read(GOOD.replace("launches: 1,", "launches: 1, growth_bytes: 0, fills: 2,")) == read(GOOD)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param("schema: 3\n", "", "missing required field `schema`", id="no schema"),
        pytest.param("schema: 3", "schema: 0", "schema 0, expected 3; record anew", id="wrong schema"),
        pytest.param("schema: 3", "schema: 4", "schema 4, expected 3; update perfguard", id="future schema"),
        pytest.param("schema: 3", "schema: three", "Expected `int`, got `str` - at `$.schema`", id="no number"),
        pytest.param("nvidia-h200", "amd-mi300x", "amd-mi300x, expected nvidia-h200, as the folder", id="foreign"),
        pytest.param("cases:", "case:", "unknown field `case`", id="unknown field"),
        pytest.param("torch:", "torhc:", "unknown field `torhc` - at `$.recordings[...]`", id="recording"),
        pytest.param("'13.0'", "13.0", "Expected `str | null`, got `float` - at `$.recordings", id="text"),
        pytest.param(f"g: {ID}", "g: none", f"cases.{KEY}: no none in recordings; take its line from", id="no record"),
        pytest.param(f"g: {ID}", "g: 1", f"cases.{KEY}: Expected `str`, got `int` - at `$.recording`", id="a number"),
        pytest.param("timer:", "clock:", "device_time_us: Object contains unknown field `clock`", id="no timer"),
        pytest.param("graph-cold,", "graph, x: 1,", "device_time_us: Object contains unknown field `x`", id="field"),
        pytest.param("61.3", "-61.3", f"cases.{KEY}.device_time_us: Expected `float` > 0.0", id="negative time"),
        pytest.param("61.3", "fast", "Expected `float`, got `str` - at `$.sessions[1]`", id="text for a time"),
        pytest.param("61.3", ".nan", "Expected `float`, got `str`", id="NaN"),
        pytest.param("61.3", "1.0e+999", "Expected `float` < 1000000000000.0", id="infinite"),
        pytest.param("61.2, 61.3, 61.1, 61.2, 61.4", "", "Expected `array` of length >= 1", id="no sessions"),
        pytest.param("61.4", "61.4, 1, 1, 1, 1", "Expected `array` of length <= 8", id="too many sessions"),
        pytest.param("launches: 1,", "launches: true,", "launches: Expected `int | float | str", id="truth"),
        pytest.param("launches: 1,", "launches: ,", "got `null`", id="nothing"),
        pytest.param("launches: 1,", "launches: 99999999999999999999.0e+300,", "launches: Expected", id="huge"),
        pytest.param("launches: 1,", "launches: 9999999999999999999,", "Expected `int` <= 92233720368547", id="long"),
        pytest.param("launches: 1,", "launches: [[1]],", "Expected `str`, got `array`", id="nested list"),
        pytest.param("rows: 1", "rows: [1]", "kernel_launches: Expected", id="a part"),
        pytest.param("launches: 1,", "device_time_us: 1,", "device_time_us among the facts and beside", id="twice"),
        pytest.param("launches: 1,", "inputs: 1,", "inputs among the facts and beside them", id="a field as a fact"),
        pytest.param("launches: 1,", "launches: 1, launches: 1,", "line 9: launches twice", id="metric twice"),
        pytest.param("...\n", f"  {KEY}: {{}}\n...\n", f"line 13: {KEY} twice", id="case twice"),
        pytest.param("launches: 1,", "7: 1,", "line 9: a name that is no text", id="a number for a name"),
        pytest.param("launches: 1,", "? [a] : 1,", "line 9: a name that is no text", id="a list for a name"),
        pytest.param("inputs: b", "inputs: [b]\n    x: b", "Expected `str`, got `array` - at `$.inputs`", id="inputs"),
        pytest.param("...\n", "  next/forward: 1\n...\n", "Expected `object`, got `int` - at `$.cases", id="no case"),
        pytest.param("...\n", "  next/forward: {}\n...\n", "cases.next/forward: no metric", id="empty case"),
        pytest.param("es: 1,", "es: &one 1,", "line 9: the anchor, alias or tag 'one'", id="anchor"),
        pytest.param("es: 1,", "es: *one ,", "line 9: the anchor, alias or tag 'one'", id="alias"),
        pytest.param("es: 1,", "es: !!python/name:os.system 1,", "line 9: the anchor, alias or tag", id="tag"),
        pytest.param("es: 1,", "es: [[[[[[[[[1]]]]]]]]],", "line 9: deeper nesting", id="nesting"),
        pytest.param("    facts:", "    facts: 1: 2", "line 9: mapping values are not allowed", id="no YAML"),
        pytest.param("es: 1,", "es: \x01,", "expected the fields and cases", id="control character"),
        pytest.param("    facts", "<<<<<<< HEAD\n    facts", "line 9: a conflict marker of git; resolve", id="merge"),
        pytest.param("...\n", "...\n---\nschema: 3\n...\n", "expected a single document", id="two documents"),
        pytest.param("...\n", "", "line 12: the end of the file, expected more cases or the line '...'", id="no end"),
        pytest.param(GOOD, "- 1\n...\n", "Expected `object`, got `array`", id="a list"),
    ],
)  # fmt: skip
def test_hand_edited(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(BaselineError) as caught:
        read(GOOD.replace(old, new, 1))
    text = str(caught.value)
    assert text.startswith("baselines/nvidia-h200/fp8.yaml: ")
    assert message in text
    steps = "(mend it, or restore the file with: git checkout -- .*yaml|(update|move|split|resolve|take|record) .*)$"
    assert re.search(f"; {steps}", text)


def test_text_that_looks_like_a_number_to_others_is_text() -> None:
    odd = ["0x1F", "010", "1_000", "12:30:45", "1e5", "2026-11-20", ".inf", "+1"]
    found = read(GOOD.replace("kernel_launches: {rows: 1, columns: '2'}", f"names: [{', '.join(odd)}]"))
    assert found.cases[KEY].entries["names"] == odd


def test_a_long_number_takes_no_time() -> None:
    """PyYAML alone multiplies out minutes and seconds, and reads digits in any base, however many."""
    started = time.monotonic()
    for digits in ("1" + ":59" * 300_000, "0x" + "f" * 900_000, "1" * 900_000):
        with contextlib.suppress(BaselineError):
            read(GOOD.replace("launches: 1,", f"launches: {digits},"))
    assert time.monotonic() - started < 10


def test_not_utf8_names_the_line() -> None:
    with pytest.raises(BaselineError, match="line 9: the byte 0xff, expected UTF-8 text"):
        read(GOOD.encode().replace(b"launches: 1,", b"launches: \xff,"))


@given(cut=st.integers(0, len(GOOD) - 2))
def test_wherever_a_file_is_cut_it_is_noticed(cut: int) -> None:
    with pytest.raises(BaselineError, match=r"^baselines/nvidia-h200/fp8.yaml: line \d+: the end of the file"):
        read(GOOD[:cut])


@given(data=st.binary(max_size=60), where=st.integers(0, len(GOOD)), length=st.integers(0, 30))
def test_whatever_happens_to_a_file_it_is_read_or_told(data: bytes, where: int, length: int) -> None:
    text = GOOD.encode()
    with contextlib.suppress(BaselineError):
        assert isinstance(read(text[:where] + data + text[where + length :]), Baseline)


def test_a_large_file_is_read() -> None:
    assert read(GOOD.replace("\n...\n", f"\n# {'x' * 1_000_000}\n...\n")) == read(GOOD)


def test_windows_line_ends_and_comments_are_read() -> None:
    assert read(GOOD.replace("\n", "\r\n")) == read(GOOD)
    assert read(GOOD.replace("cases:\n", "cases:  # sorted\n  # the first\n")) == read(GOOD)
