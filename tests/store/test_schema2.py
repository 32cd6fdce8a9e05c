"""Baselines as perfguard wrote them until schema 2 are read, and converted."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfguard.model.errors import BaselineError
from perfguard.model.records import CaseBaseline, Provenance, TimedEntry
from perfguard.model.records.change import Change
from perfguard.store.baseline_files import Store
from perfguard.store.baseline_form import parse
from perfguard.store.baseline_update import apply
from perfguard.store.schema2 import convert

NINE = [62.0, 61.5, 61.4, 61.3, 61.1, 61.2, 61.4, 61.2, 61.2]
OLD = f"""\
schema: 2
hardware: nvidia-h200
provenance: {{torch: 2.11.0, toolkit: 13.0, python: 3.10, power_limit_watts: 700.0, commit: 1234567, recorded: 2026-11-20}}
names:
  $Functor.ljkkngrf: "void at::long<1>"
cases:
  gate[64]/backward:
    collectives: [all_reduce, $Functor.ljkkngrf]
    contract: "bfloat16[64,48] strides (48,1)"
    device_time_us: {{sessions: {NINE}, timer: graph-cold}}
    host_time_us: {{sessions: [9.0], timer: host, anchor: 8.0}}
    kernels: [rows]
    unheard_of: "1.5"
    facts: {{capturable: "yes", fingerprint: "11c05c4d3307be5e", launches: 7, workspace_bytes: 139199552}}
    inputs: bfloat16[64,48]
    reasons:
      - {{of: [device_time_us, fingerprint], why: "wider tiles"}}
      - {{of: [workspace_bytes], why: "of no interest"}}

  gate[64]/forward:
    launches: 1
    inputs: bfloat16[64,48]
    reasons:
      launches: "two steps"
    provenance: {{torch: 2.12.0, commit: 7654321+}}

  only_kernels/forward:
    kernels: [rows]

...
"""  # noqa: E501
BACKWARD = CaseBaseline(
    {
        "collectives": ["all_reduce", "void at::long<1>"],
        "contract": "bfloat16[64,48] strides (48,1)",
        "device_time_us": TimedEntry(NINE[1:], "graph-cold", 61.3),
        "host_time_us": TimedEntry([9.0], "host", 8.0),
        "unheard_of": "1.5",
        "capturable": "yes",
        "fingerprint": "11c05c4d3307be5e",
        "launches": 7,
    },
    "bfloat16[64,48]",
    "1234567",
)
FORWARD = CaseBaseline({"launches": 1}, "bfloat16[64,48]", "7654321+")
FIRST = Provenance(
    torch="2.11.0", toolkit="13.0", python="3.10", power_limit_watts=700.0, commit="1234567", recorded="2026-11-20",
    reason="wider tiles",
)  # fmt: skip
PORTABLE = """\
schema: 2
target: cpu
provenance: {torch: 2.11.0, commit: 1a, recorded: 2026-11-20}
cases:
  gate[64]/forward:
    operators: 3
    inputs: bfloat16[64,48]

...
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in {
        "nvidia-h200/moe.yaml": OLD,
        "targets/cpu/moe.yaml": PORTABLE,
        "targets/sm_90/moe.yaml": PORTABLE.replace("cpu", "sm_90"),
    }.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*.yaml")}


@pytest.mark.parametrize("schema", [1, 2])
def test_what_gates_or_covers_is_read_with_its_last_sessions(schema: int) -> None:
    text = OLD.replace("schema: 2", f"schema: {schema}")
    found = parse(text.encode(), Path("baselines/nvidia-h200/moe.yaml"), "nvidia-h200", "moe")
    assert found.cases == {"gate[64]/backward": BACKWARD, "gate[64]/forward": FORWARD}
    last = Provenance(torch="2.12.0", commit="7654321+", reason="two steps")
    assert found.recordings == {"1234567": FIRST, "7654321+": last}


def test_a_tree_is_converted(root: Path) -> None:
    before = {folder: Store(root).load(folder, "moe") for folder in Store(root).folders()}
    assert list(before) == ["cpu", "nvidia-h200"]
    convert(root)
    assert files(root) == {"nvidia-h200/moe.yaml", "cpu/moe.yaml"}
    assert {folder: Store(root).load(folder, "moe") for folder in Store(root).folders()} == before
    assert all(path.read_text().startswith("schema: 3\n") for path in root.rglob("*.yaml"))
    converted = {path: path.read_bytes() for path in root.rglob("*.yaml")}
    convert(root)  # again: nothing is left to do
    assert {path: path.read_bytes() for path in root.rglob("*.yaml")} == converted


def test_an_update_writes_the_new_form_in_the_place_of_the_old(root: Path) -> None:
    store = Store(root)
    assert store.suites("cpu") == ["moe"]
    changed = Change(
        category="changed", folder="cpu", suite="moe", key="gate[64]/forward", metric="operators", before=3, after=2
    )
    apply(store, [changed], Provenance(commit="2b"))
    assert files(root) == {"nvidia-h200/moe.yaml", "cpu/moe.yaml", "targets/sm_90/moe.yaml"}
    assert store.load("cpu", "moe") == Store(root).load("cpu", "moe")
    assert "operators: 2" in (root / "cpu/moe.yaml").read_text()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema: 2", "schema: 0", "schema 0, expected 3"),
        ("nvidia-h200", "nvidia-h100", "a file of nvidia-h100, expected one of nvidia-h200"),
        ("provenance:", "prov:", "no baseline of schema 1 or 2 .KeyError"),
        ("launches: 7", "launches: [[7]]", r"cases.gate\[64\]/backward.launches: Expected"),
        ("9.0", "fast", "host_time_us: Expected `float`"),
        ("torch: 2.12.0", "torhc: 2.12.0", "no baseline of schema 1 or 2 .*unknown field `torhc`"),
        ("launches: 7", "launches: 7, launches: 8", "launches twice"),
        ("    launches: 1", "    launches: &a 1", "anchor, alias or tag"),
    ],
)
def test_a_mistake_in_an_old_file_is_told(old: str, new: str, message: str) -> None:
    assert old in OLD
    with pytest.raises(BaselineError, match=f"^baselines/moe.yaml: .*{message}.*; "):
        parse(OLD.replace(old, new).encode(), Path("baselines/moe.yaml"), "nvidia-h200", "moe")
