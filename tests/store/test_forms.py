"""The form of the files: what many cases share stands once, a changed fact changes few lines, older forms are read."""

from __future__ import annotations

import difflib
import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfguard.model.errors import BaselineError
from perfguard.model.records import Baseline, CaseBaseline, Parts, Provenance
from perfguard.model.records.change import Change
from perfguard.store.baseline_files import Store
from perfguard.store.baseline_parser import parse
from perfguard.store.baseline_update import apply
from perfguard.store.baseline_writer import render, rows_of

FOLDER, SUITE = "targets/sm_90", "moe"
PATH = Path("baselines/targets/sm_90/moe.yaml")
NOW = Provenance(triton="3.9.0", commit="1a", recorded="2026-11-25")
LATER = Provenance(triton="3.9.0", commit="2b", recorded="2026-11-26")

# A file as perfguard wrote it until schema 2.
OLD = """\
schema: 1
target: sm_90
provenance: {triton: 3.9.0, commit: 1a, recorded: 2026-11-25}
cases:
  gate[64]/backward:
    sm_90.binary:
      rows: "301e5814b2d4f0c1"
      rows/2: "66cf3c1b57dfb5b0"
      sums: "ac84a02a444a2e4c"
    sm_90.registers: {rows: 48, rows/2: 40, sums: 28}
    sm_90.sector_bytes: {rows: 32.0, sums: 27.1}
    sm_90.spills: {rows: 0, rows/2: 0, sums: 0}
    sm_90.unfit: {}
    sm_90.memory_operators: "10 _to_copy"
    inputs: bfloat16[64,48]
    reasons:
      sm_90.registers: "rings in shared memory"
      sm_90.spills: "rings in shared memory"

  gate[64]/forward:
    sm_90.binary: {rows: "301e5814b2d4f0c1"}
    sm_90.registers: {rows: 48}
    sm_90.sector_bytes: {rows: 32.0}
    sm_90.spills: {rows: 0}
    sm_90.unfit: {}
    inputs: bfloat16[64,48]

...
"""
NEW = """\
schema: 2
target: sm_90
provenance: {triton: 3.9.0, commit: 1a, recorded: 2026-11-25}
kernels:
  rows:
    cgnvwikp: {registers: 48, sector_bytes: 32.0, spills: 0, binary: "301e5814b2d4f0c1"}
    vvhgpfci: {registers: 40, spills: 0, binary: "66cf3c1b57dfb5b0"}
  sums:
    mjlrjxfw: {registers: 28, sector_bytes: 27.1, spills: 0, binary: "ac84a02a444a2e4c"}
cases:
  gate[64]/backward:
    binaries: {rows: cgnvwikp, rows/2: vvhgpfci, sums: mjlrjxfw}
    facts: {sm_90.memory_operators: "10 _to_copy", sm_90.unfit: {}}
    inputs: bfloat16[64,48]
    reasons:
      - {of: [sm_90.registers, sm_90.spills], why: "rings in shared memory"}

  gate[64]/forward:
    sm_90.unfit: {}
    binaries: {rows: cgnvwikp}
    inputs: bfloat16[64,48]

...
"""


def stored(root: Path, text: str) -> tuple[Store, Path]:
    path = Store(root).path(FOLDER, SUITE)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return Store(root), path


def read(text: str, folder: str = FOLDER) -> Baseline:
    return parse(text.encode(), PATH, folder, SUITE)


def test_a_file_of_the_old_form_is_written_in_the_new_one_with_its_content() -> None:
    assert render(read(OLD)) == NEW
    assert read(NEW) == read(OLD)


def test_a_block_of_the_old_form_may_stand_in_a_file_of_the_new_one() -> None:
    block = OLD[OLD.index("  gate[64]/forward") : OLD.index("...")]
    mixed = NEW.replace(NEW[NEW.index("  gate[64]/forward") : NEW.index("...")], block)
    assert read(mixed) == read(OLD)
    assert render(read(mixed)) == NEW


def spilling(baseline: Baseline, key: str, spills: Parts) -> list[Change]:
    before = baseline.cases[key].entries["sm_90.spills"]
    return [
        Change(
            category="changed", folder=FOLDER, suite=SUITE, key=key, metric="sm_90.spills", before=before,
            after=spills, inputs="bfloat16[64,48]", needs_reason=True,
        )
    ]  # fmt: skip


def lines(before: str, after: str) -> list[str]:
    told = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    return [line for line in told if line[0] in "+-" and line[:3] not in ("+++", "---")]


def test_one_changed_fact_changes_few_lines_and_reads_before_and_after(tmp_path: Path) -> None:
    store, _ = stored(tmp_path, NEW)
    apply(store, spilling(read(NEW), "gate[64]/backward", {"rows": 0, "rows/2": 8, "sums": 0}), LATER, "wider")
    changed = lines(NEW, store.path(FOLDER, SUITE).read_text())
    assert changed == [
        '-    vvhgpfci: {registers: 40, spills: 0, binary: "66cf3c1b57dfb5b0"}',
        '+    nhkyqazy: {registers: 40, spills: 8, binary: "66cf3c1b57dfb5b0"}',
        "-    binaries: {rows: cgnvwikp, rows/2: vvhgpfci, sums: mjlrjxfw}",
        "+    binaries: {rows: cgnvwikp, rows/2: nhkyqazy, sums: mjlrjxfw}",
        '-      - {of: [sm_90.registers, sm_90.spills], why: "rings in shared memory"}',
        '+      sm_90.registers: "rings in shared memory"',
        '+      sm_90.spills: "wider"',
        "+    provenance: {triton: 3.9.0, commit: 2b, recorded: 2026-11-26}",
    ]


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        pytest.param("rows/2: vvh", "rows/2: xvh", 12, "no row xvhgpfci in kernels for rows/2", id="no such row"),
        pytest.param("vvhgpfci, sums", "mjlrjxfw, sums", 12, "the row mjlrjxfw of sums for rows/2", id="another's"),
        pytest.param("vvhgpfci: {", "cgnvwikp: {", 7, "cgnvwikp twice in the kernel rows", id="twice"),
        pytest.param("mjlrjxfw: {", "cgnvwikp: {", 9, "the row cgnvwikp twice in kernels", id="twice in the table"),
        pytest.param("registers: 28", "registers: few", 9, "'few'; expected a finite number", id="text for a number"),
        pytest.param('sm_90.memory_operators: "', 'sm_90.spills: "', 12, "sm_90.spills in binaries and", id="both"),
        pytest.param("    sm_90.unfit: {}\n    b", "    x: [$y]\n    b", 19, "no $y in names; expected", id="no name"),
        pytest.param("{of: [sm", "{off: [sm", 16, "Object contains unknown field `off`", id="a reason's field"),
        pytest.param("of: [sm_90.registers, sm_90.spills], ", "", 16, "Object missing required", id="of nothing"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_tables_is_told_with_its_line(old: str, new: str, line: int, message: str) -> None:
    assert old in NEW
    with pytest.raises(BaselineError) as caught:
        read(NEW.replace(old, new, 1))
    assert str(caught.value).startswith(f"{PATH}, line {line}: found {message}")


def test_kernels_belong_to_targets() -> None:
    with pytest.raises(BaselineError, match="line 5: found kernels in a file of a hardware"):
        read(NEW.replace("target: sm_90", "hardware: nvidia-h200"), "nvidia-h200")


def test_a_small_file_cannot_stand_for_a_huge_one() -> None:
    row = ", ".join(f"f{number}: 1" for number in range(10_000))
    uses = ", ".join(f"rows/{number}: cgnvwikp" for number in range(2, 103))
    text = NEW.replace("registers: 48", f"{row}, registers: 48").replace("rows/2: vvhgpfci", uses)
    assert len(text) < 200_000
    with pytest.raises(BaselineError, match="rows of more than 1000000 facts; expected fewer"):
        read(text)


values = st.one_of(st.integers(0, 9), st.sampled_from(["none", "a, b", 0.0, 76.5]))
metrics = st.dictionaries(
    st.sampled_from([f"sm_90.{letter}" for letter in "abcd"]),
    st.lists(st.sampled_from(["rows", "rows/2", "sums", "sums@1", "call"]), unique=True).flatmap(
        lambda names: st.fixed_dictionaries(dict.fromkeys(names, values))
    ),
    min_size=1,
)


@given(entries=metrics)
def test_parts_keep_their_order_and_their_kind(entries: dict[str, Parts]) -> None:
    baseline = Baseline(FOLDER, SUITE, NOW, {"a/forward": CaseBaseline(entries={**entries})})
    found = read(render(baseline)).cases["a/forward"].entries
    assert {metric: [*map(repr, parts.items())] for metric, parts in entries.items()} == {
        metric: [*map(repr, parts.items())] for metric, parts in found.items() if isinstance(parts, dict)
    }
    # Whatever has one order is held by rows.
    orders = [pair for parts in entries.values() for pair in itertools.combinations(parts, 2)]
    if not any((later, earlier) in orders for earlier, later in orders) and len(entries) < 3:
        assert rows_of(baseline.cases["a/forward"], "sm_90.")[1] == {name for name, parts in entries.items() if parts}


def test_the_examples_of_the_page_are_as_perfguard_writes_them() -> None:
    page = (Path(__file__).parents[2] / "docs" / "baselines.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```yaml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert len(examples) == 2
    for text, folder in zip(examples, ("nvidia-h200", FOLDER), strict=True):
        assert render(read(text, folder)) == text
