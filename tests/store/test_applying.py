"""Chosen changes reach the files, and nothing else does."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from perfguard.model.errors import BaselineError
from perfguard.model.records import Baseline, CaseBaseline, Entry, Provenance, TimedEntry
from perfguard.model.records.change import Change
from perfguard.store import baseline_files
from perfguard.store.baseline_files import Store, apply

FIRST = Provenance(torch="2.11.0", driver="580.1", commit="1a", recorded="2026-11-20")
LATER = replace(FIRST, commit="2b", recorded="2026-11-21")


def change(key: str, after: Entry | None, before: Entry | None = None, **fields: object) -> Change:
    values = {"category": "new", "folder": "x", "suite": "fp8", "metric": "launches", "inputs": "bf16", **fields}
    return Change(key=key, before=before, after=after, **values)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Remembers a, b and c with one launch each."""
    store = Store(tmp_path / "baselines")
    apply(store, [change(key, 1) for key in "abc"], FIRST)
    return store


def cases(store: Store, folder: str = "x") -> dict[str, CaseBaseline]:
    baseline = store.load(folder, "fp8")
    assert baseline is not None
    return baseline.cases


def text(store: Store) -> str:
    return store.path("x", "fp8").read_text()


def test_a_first_update_creates_folder_and_file(tmp_path: Path) -> None:
    store = Store(tmp_path / "not" / "yet")
    changes = [
        change("a", 1),
        change("a", TimedEntry(sessions=[61.234], timer="graph"), metric="device_time_us"),
        change("a", 0, metric="breaks", folder="cpu"),
    ]
    assert apply(store, changes, FIRST) == [store.path("x", "fp8"), store.path("cpu", "fp8")]
    entries: dict[str, Entry] = {"launches": 1, "device_time_us": TimedEntry(sessions=[61.23], timer="graph")}
    assert store.load("x", "fp8") == Baseline("x", "fp8", {"1a": FIRST}, {"a": CaseBaseline(entries, "bf16", "1a")})
    # What holds on every machine does not depend on this one's driver.
    portable = store.load("cpu", "fp8")
    assert portable is not None
    assert portable.recordings == {"1a": replace(FIRST, driver=None)}


def test_only_the_lines_of_the_changed_case_change(store: Store) -> None:
    before = text(store)
    apply(store, [change("b", 2, 1, category="changed", needs_reason=True)], LATER, "two stages")
    assert text(store) == before.replace(
        "  b:\n    facts: {launches: 1}\n    inputs: bf16\n    recording: 1a\n",
        "  b:\n    facts: {launches: 2}\n    inputs: bf16\n    recording: 2b\n",
    ).replace(
        "cases:\n",
        "  2b: {torch: 2.11.0, driver: '580.1', commit: 2b, recorded: '2026-11-21', reason: two stages}\ncases:\n",
    )


def test_removing_the_last_case_removes_the_file(store: Store) -> None:
    before = text(store)
    apply(store, [change("b", None, metric="", category="stale")], LATER)
    block = "  b:\n    facts: {launches: 1}\n    inputs: bf16\n    recording: 1a\n\n"
    assert block in before
    assert text(store) == before.replace(block, "")
    apply(store, [change(key, None, metric="", category="stale") for key in "ac"], LATER)
    assert not store.path("x", "fp8").exists()


def test_a_new_method_brings_its_inputs(store: Store) -> None:
    apply(store, [change("a", 1, 1, category="changed", inputs="fp16", together=True)], LATER)
    assert cases(store)["a"] == CaseBaseline({"launches": 1}, "fp16", "2b")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"refused": "unstable: wild"}, "^a launches: unstable: wild$"),
        (
            {"needs_reason": True, "grown": "+4.0 % over its anchor of 50 µs"},
            r"a launches: \+4.0 % over its anchor of 50 µs; say why with --perfguard-reason",
        ),
        ({"needs_reason": True}, "^a launches: slower, heavier or different; say why with --perfguard-reason$"),
        ({"before": 7}, "fp8.yaml: a launches has changed since it was compared; run the update again$"),
        ({"suite": "../fp8"}, "cannot name a baseline file"),
        ({"key": "\ud800"}, "fp8.yaml: its new content is not read back .*; give the case another id$"),
    ],
)
def test_what_may_not_be_written_stops_everything(store: Store, fields: dict[str, object], message: str) -> None:
    before = text(store)
    odd = replace(change("a", 2, 1), **fields)
    if "key" in fields:
        odd = replace(odd, before=None)
    with pytest.raises(BaselineError, match=message):
        apply(store, [change("b", 2, 1), change("a", 1, folder="y"), odd], LATER)
    assert text(store) == before
    assert not (store.root / "y").exists()


def test_a_broken_file_is_never_overwritten(store: Store) -> None:
    path = store.path("x", "fp8")
    broken = text(store).replace("launches: 1", "launches: true", 1)
    path.write_text(broken)
    with pytest.raises(BaselineError, match=r"fp8.yaml: cases.a.launches: Expected .*, got `bool`"):
        apply(store, [change("new", 1), change("a", 1, folder="y")], LATER)
    assert path.read_text() == broken
    assert not (store.root / "y").exists()


@given(keys=st.lists(st.text(max_size=10), min_size=1, max_size=4, unique=True), data=st.data())
def test_what_is_applied_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, keys: list[str], data: st.DataObject
) -> None:
    store = Store(tmp_path_factory.mktemp("baselines"))
    first = {key: data.draw(st.integers()) % 2**60 for key in keys}
    apply(store, [change(key, value) for key, value in first.items()], FIRST)
    assert {key: case.entries["launches"] for key, case in cases(store).items()} == first
    moved = data.draw(st.sets(st.sampled_from(keys)))
    reasons = data.draw(st.text(min_size=1).filter(str.strip))
    apply(store, [change(key, "slow", first[key], needs_reason=True) for key in sorted(moved)], LATER, reasons)
    loaded = cases(Store(store.root))
    assert list(loaded) == sorted(keys)
    for key, case in loaded.items():
        assert case.entries["launches"] == ("slow" if key in moved else first[key])
        baseline = store.load("x", "fp8")
        assert baseline is not None
        assert baseline.provenance_of(key) == (replace(LATER, reason=reasons.strip()) if key in moved else FIRST)


@pytest.mark.parametrize(
    ("reason", "grown", "anchor"), [("", "", 50.0), ("why", "", 50.0), ("", "+4 %", 50.0), ("why", "+4 %", None)]
)
def test_a_reason_is_kept_and_lifts_the_anchor_of_what_grew(
    store: Store, reason: str, grown: str, anchor: float | None
) -> None:
    after = TimedEntry([52.0] * 5, "graph", anchor=50.0)
    apply(store, [change("a", after, category="slower", metric="t", grown=grown)], LATER, reason)
    baseline = store.load("x", "fp8")
    assert baseline is not None
    assert baseline.cases["a"].entries["t"] == replace(after, anchor=anchor)
    assert baseline.provenance_of("a").reason == reason


def recordings(store: Store) -> dict[str, Provenance]:
    baseline = store.load("x", "fp8")
    assert baseline is not None
    return {key: baseline.provenance_of(key) for key in baseline.cases}


def test_a_change_may_have_a_provenance_of_its_own(store: Store) -> None:
    own = replace(FIRST, board="b", commit="3c")
    apply(store, [change("a", 2, 1, provenance=own), change("b", 3, 1)], LATER, "")
    assert recordings(store) == {"a": own, "b": LATER, "c": FIRST}
    apply(store, [change("a", 4, 2), change("b", 4, 3), change("c", 4, 1, provenance=own)], LATER, "")
    assert recordings(store) == {"a": LATER, "b": LATER, "c": own}


def test_a_recording_has_one_name_and_goes_with_its_last_case(store: Store) -> None:
    """One commit may be recorded under two conditions, or for two reasons; clocks differ in any two runs."""
    other = replace(LATER, driver="590.1")
    apply(store, [change("a", 2, 1)], replace(LATER, clock_mhz=1900))
    apply(store, [change("b", 2, 1)], replace(LATER, clock_mhz=1901))
    apply(store, [change("c", 2, 1)], other, "an upgrade")
    assert {key: case.recording for key, case in cases(store).items()} == {"a": "2b", "b": "2b", "c": "2b-2"}
    assert recordings(store)["c"] == replace(other, reason="an upgrade")
    apply(store, [change(key, 3, 2) for key in "abc"], replace(FIRST, commit=None))
    assert {case.recording for case in cases(store).values()} == {"2026-11-20"}
    assert text(store).count("torch:") == 1


# -- at once, and on files of other kinds ------------------------------------------------------------------------------


def test_two_updates_of_one_file_at_once_lose_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would write when the other has read as well, if it only could."""
    both, replace_files = threading.Barrier(2, timeout=1.0), Store.replace

    def wait(self: Store, contents: Mapping[Path, bytes | None]) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait()
        replace_files(self, contents)

    monkeypatch.setattr(Store, "replace", wait)
    with ThreadPoolExecutor(2) as threads:
        done = [threads.submit(apply, Store(store.root), [change(key, 1)], LATER) for key in ("d", "e")]
    assert [each.result() for each in done] == 2 * [[store.path("x", "fp8")]]
    assert sorted(cases(store)) == ["a", "b", "c", "d", "e"]


def test_a_lock_that_stays_held_is_an_error_and_git_takes_no_lock(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baseline_files, "_LOCK_SECONDS", 0.05)
    with store.locked(), pytest.raises(BaselineError, match="another process has been writing baselines for 0 s; wait"):
        apply(Store(store.root), [change("d", 1)], LATER)
    apply(store, [change("d", 1)], LATER)
    git = ["git", "-C", str(store.root)]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "add", "--all"], check=True)
    listed = subprocess.run([*git, "ls-files"], check=True, capture_output=True, text=True)
    assert listed.stdout == "x/fp8.yaml\n"


def test_a_file_keeps_its_permissions_its_line_ends_and_the_link_to_it(store: Store) -> None:
    path = store.path("x", "fp8")
    real = store.root.parent / "elsewhere" / "fp8.yaml"
    real.parent.mkdir()
    real.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    real.chmod(0o664)
    path.unlink()
    path.symlink_to(real)
    apply(store, [change("d", 1)], LATER)
    assert path.readlink() == real
    assert real.stat().st_mode & 0o777 == 0o664
    assert list(cases(store)) == ["a", "b", "c", "d"]
    lines = real.read_bytes().splitlines(keepends=True)
    assert {line[-2:] for line in lines} == {b"\r\n"}
    assert [each.name for each in real.parent.iterdir()] == ["fp8.yaml"]
