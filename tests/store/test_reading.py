"""A baseline file that is not as perfguard wrote it gives one error with file, line and what was expected."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfguard.model.errors import BaselineError
from perfguard.model.records import Baseline, CaseBaseline, Provenance, TimedEntry
from perfguard.store.baseline_parser import parse

# A file as docs/baselines.md shows it.
GOOD = """\
schema: 1
hardware: nvidia-h200
provenance: {torch: 2.11.0, triton: 3.6.0, driver: 580.159, commit: 1234567, recorded: 2026-11-20}
cases:
  quantize_colwise_per_group[16640x5120-g16]/forward:
    device_time_us: {sessions: [61.2, 61.3, 61.1, 61.2, 61.4], timer: graph-cold}
    launches: 1
    peak_memory_bytes: 85196800
...
"""
KEY = "quantize_colwise_per_group[16640x5120-g16]/forward"


def read(text: str | bytes, folder: str = "nvidia-h200") -> Baseline:
    data = text.encode() if isinstance(text, str) else text
    return parse(data, Path("baselines/nvidia-h200/fp8.yaml"), folder, "fp8")


def test_the_example_of_the_design() -> None:
    assert read(GOOD) == Baseline(
        hardware="nvidia-h200",
        suite="fp8",
        # Versions and hashes are text even where they look like numbers or dates.
        provenance=Provenance(
            torch="2.11.0", triton="3.6.0", driver="580.159", commit="1234567", recorded="2026-11-20"
        ),
        cases={
            KEY: CaseBaseline(
                entries={
                    "device_time_us": TimedEntry(sessions=[61.2, 61.3, 61.1, 61.2, 61.4], timer="graph-cold"),
                    "launches": 1,
                    "peak_memory_bytes": 85196800,
                }
            )
        },
    )


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        pytest.param("schema: 1\n", "", 1, "no field schema", id="no schema"),
        pytest.param("schema: 1", "schema: 0", 1, "schema 0; expected schema 1", id="wrong schema"),
        pytest.param("schema: 1", "schema: 3", 1, "schema 3; *update perfguard", id="future schema"),
        pytest.param("nvidia-h200", "amd-mi300x", 2, "hardware amd-mi300x; expected hardware nvidia", id="foreign"),
        pytest.param("hardware: nvidia-h200", "target: cpu", 1, "no field hardware", id="a target"),
        pytest.param("cases:", "case:", 5, "unknown field case in the file; expected only schema", id="unknown field"),
        pytest.param("torch:", "torhc:", 3, "unknown field torhc in provenance; expected only torch", id="provenance"),
        pytest.param("timer:", "clock:", 6, "unknown field `clock`; expected a time {sessions", id="no timer"),
        pytest.param("graph-cold}", "graph, x: 1}", 6, "Object contains unknown field `x`", id="timed field"),
        pytest.param("61.3", "-61.3", 6, "Expected `float` > 0.0", id="negative time"),
        pytest.param("61.3", "fast", 6, "Expected `float`, got `str`", id="text for a time"),
        pytest.param("61.3", ".nan", 6, "Expected `float`", id="NaN"),
        pytest.param("61.3", "nan", 6, "Expected `float`", id="nan"),
        pytest.param("61.3", "1e999", 6, "Number out of range", id="infinite"),
        pytest.param("graph-cold}", "graph-cold, anchor: 0}", 6, "Expected `float` > 0.0", id="no anchor"),
        pytest.param("[61.2, 61.3, 61.1, 61.2, 61.4]", "[]", 6, "Expected `array` of length >= 1", id="no sessions"),
        pytest.param("[61.2, 61.3, 61.1, 61.2, 61.4]", "61.2", 6, "'graph-cold'; expected a finite", id="one"),
        pytest.param("launches: 1", "launches: one", 7, "'one'; expected a finite number (text", id="text for count"),
        pytest.param("launches: 1", "launches: true", 7, "'true'; expected a finite number", id="truth for count"),
        pytest.param("launches: 1", "launches: 010", 7, "'010'; expected a finite number", id="octal"),
        pytest.param("launches: 1", "launches:", 7, "nothing; expected a finite number", id="nothing"),
        pytest.param("launches: 1", "launches: [[1]]", 7, "a list; expected text", id="nested list"),
        pytest.param("launches: 1", "spills: {rows: [1]}", 7, "a list; expected a finite number", id="a part"),
        pytest.param("launches: 1", "device_time_us: 1", 7, "device_time_us twice in the case", id="metric twice"),
        pytest.param("    launches: 1\n", f"  {KEY}:\n    x: 1\n", 7, "twice in cases", id="case twice"),
        pytest.param("    launches: 1\n", "    inputs: [a]\n", 7, "a list; expected text", id="inputs"),
        pytest.param("    launches: 1\n", "    reasons: slow\n", 7, "'slow' for reasons; expected", id="reasons"),
        pytest.param("...\n", "  next/forward: 1\n...\n", 9, "'1' for the case next/forward", id="no case"),
        pytest.param("...\n", "  next/forward: {}\n...\n", 9, "no metric in next/forward", id="empty case"),
        pytest.param("launches: 1", "launches: &one 1", 7, "alias or tag 'one'; expected plain values", id="anchor"),
        pytest.param("launches: 1", "launches: *one", 7, "alias or tag 'one'; expected plain values", id="alias"),
        pytest.param("launches: 1", "launches: !!python/name:os.system 1", 7, "alias or tag", id="tag"),
        pytest.param("launches: 1", "launches: [[[[[[[[[1]]]]]]]]]", 7, "deeper nesting", id="nesting"),
        pytest.param("launches: 1", "launches: 1: 2", 7, "no YAML", id="no YAML"),
        pytest.param("launches: 1", "launches: \x01", 7, "no YAML", id="control character"),
        pytest.param("    launches", "<<<<<<< HEAD\n    launches", 7, "a conflict marker of git", id="merge"),
        pytest.param("...\n", "...\n---\nschema: 1\n...\n", 10, "no YAML", id="two documents"),
        pytest.param("...\n", "", 8, "the end of the file; expected more cases or the line '...'", id="no end"),
        pytest.param(GOOD, "- 1\n...\n", 1, "a list for the file; expected fields", id="a list"),
        pytest.param(GOOD, "# " + "x" * 1_000_000, 1, "1000002 bytes; expected at most", id="too large"),
    ],
)  # fmt: skip
def test_hand_edited(old: str, new: str, line: int, message: str) -> None:
    with pytest.raises(BaselineError) as caught:
        read(GOOD.replace(old, new, 1))
    text = str(caught.value)
    assert text.startswith(f"baselines/nvidia-h200/fp8.yaml, line {line}: found ")
    for part in message.split("*"):
        assert part.strip() in text
    steps = (
        f"(mend line {line}, or restore the file with: git checkout -- .*yaml|update .*|move .*|split .*|resolve .*)$"
    )
    assert re.search(f"; {steps}", text)


def test_not_utf8_names_the_line() -> None:
    with pytest.raises(BaselineError, match="line 7: found the byte 0xff; expected UTF-8 text"):
        read(GOOD.encode().replace(b"launches: 1", b"launches: \xff"))


@given(cut=st.integers(0, len(GOOD) - 2))
def test_wherever_a_file_is_cut_it_is_noticed(cut: int) -> None:
    with pytest.raises(BaselineError, match=r"^baselines/nvidia-h200/fp8.yaml, line \d+: found .*; expected .*; .*"):
        read(GOOD[:cut])


@given(data=st.binary(max_size=60), where=st.integers(0, len(GOOD)), length=st.integers(0, 30))
def test_whatever_happens_to_a_file_it_is_read_or_told(data: bytes, where: int, length: int) -> None:
    text = GOOD.encode()
    with contextlib.suppress(BaselineError):
        assert isinstance(read(text[:where] + data + text[where + length :]), Baseline)


def test_windows_line_ends_and_comments_are_read() -> None:
    assert read(GOOD.replace("\n", "\r\n")) == read(GOOD)
    assert read(GOOD.replace("cases:\n", "cases:  # sorted\n  # the first\n")) == read(GOOD)
