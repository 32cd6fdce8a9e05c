"""The summary, against golden text: worst first, before -> after, and the commands that act."""

from __future__ import annotations

import msgspec

from perfguard.records import (
    SCHEMA,
    Accuracy,
    Case,
    CaseResult,
    Conditions,
    Hardware,
    Reading,
    Report,
    Throughput,
    Toolchain,
    Verdict,
    Word,
)
from perfguard.render.terminal import render_summary
from perfguard.units import Unit


def result(name: str, *verdicts: Verdict, us: float | None = 61.2) -> CaseResult:
    readings = [] if us is None else [Reading("device_time_us", Unit.MICROSECONDS, us, timer="queue-cold")]
    through = Throughput(bytes_per_second=4.0e12, flop_per_second=None, copy_fraction=0.946)
    return CaseResult(
        case=Case("suite", name, "forward", f"tests/test_suite.py::test_{name}"),
        readings=readings,
        verdicts=list(verdicts),
        throughput=through if us else None,
        accuracy=[Accuracy("output", "bfloat16")],
    )


REPORT = Report(
    schema=SCHEMA,
    hardware=Hardware(slug="nvidia-h200", vendor="nvidia", name="NVIDIA H200", architecture="sm_90"),
    toolchain=Toolchain(torch="2.11.0", triton="3.6.0", driver="580.159.04", toolkit="CUDA 13.0"),
    started="2026-11-21T00:00:00+00:00",
    conditions=[Conditions(clock_mhz=345), Conditions(clock_mhz=1980, throttle_reasons=["power cap"])],
    copy_bytes_per_second=4.23e12,
    complete=True,
    guarded=3,
    remembered=4,
    results=[
        result("fine", Verdict(Word.PASS, "device_time_us", smallest=0.018)),
        result(
            "slow[64]",
            Verdict(
                Word.SLOWER, "device_time_us", "+6.1 % in 3 fresh processes; because: launches 1 -> 2",
                before=61.2, after=64.93, unit=Unit.MICROSECONDS, ratio=1.061,
            ),
            Verdict(Word.CHANGED, "launches", before=1, after=2, unit=Unit.COUNT, ratio=2.0),
        ),
        result("bad", Verdict(Word.WRONG, "output 0", "row 3: got 1, want 2\nSQNR 6.0 dB"), us=None),
        result("fresh", Verdict(Word.NEW, "device_time_us", "no baseline on nvidia-h200")),
    ],
    stale=[Verdict(Word.STALE, reason="gone of suite: the case is gone", suite="suite", case="gone/forward")],
)  # fmt: skip

GOLDEN = """\
NVIDIA H200 · driver 580.159.04 · torch 2.11.0 · triton 3.6.0 · CUDA 13.0 · 1980 MHz · throttled: power cap · copy 4.23 TB/s
case              time     throughput  % of copy  verdict
fine/forward      61.2 µs  4 TB/s      95 %       PASS
slow[64]/forward  61.2 µs  4 TB/s      95 %       SLOWER
fresh/forward     61.2 µs  4 TB/s      95 %       NEW
WRONG  bad/forward
    WRONG output 0
      row 3: got 1, want 2
      SQNR 6.0 dB
    reproduce: pytest --perfguard tests/test_suite.py::test_bad
SLOWER  slow[64]/forward
    SLOWER device_time_us: 61.2 µs -> 64.93 µs (+6.1 %)
      +6.1 % in 3 fresh processes; because: launches 1 -> 2
    CHANGED launches: 1 -> 2 (+100.0 %)
    reproduce: pytest --perfguard 'tests/test_suite.py::test_slow[64]'
    compare:   perfguard compare -- 'tests/test_suite.py::test_slow[64]'
    accept:    pytest --perfguard --perfguard-update=changed,slower --perfguard-reason 'why' 'tests/test_suite.py::test_slow[64]'
STALE  1 case: are stored but their tests are gone
    gone/forward
    remove: pytest --perfguard --perfguard-update=stale
NEW  1 case: have no baseline here and are not guarded (named metrics: only those are new)
    fresh/forward
    record: pytest --perfguard --perfguard-update=new
PASS  1 case"""


def test_golden() -> None:
    summary = render_summary(REPORT)
    assert summary.title == "nvidia-h200, 3 of 4 cases guarded, baselines hold 4, 1 not measured"
    assert "\n".join(line.text for line in summary.lines) == GOLDEN


def test_many_cases_are_counted_truthfully() -> None:
    slow = REPORT.results[1]
    many = [
        msgspec.structs.replace(slow, case=msgspec.structs.replace(slow.case, name=f"slow[{number}]"))
        for number in range(500)
    ]
    report = msgspec.structs.replace(REPORT, results=many)
    text = [line.text for line in render_summary(report).lines]
    assert len(text) < 400
    assert "… and 480 more SLOWER: see the report, or -v" in text
    assert "… and 440 more: see the report, or -v" in text
    full = [line.text for line in render_summary(report, verbose=True).lines]
    assert sum(line.startswith("SLOWER  ") for line in full) == 500


def test_many_new_metrics_of_a_slow_case_take_one_line() -> None:
    """After an upgrade that reads more, or an old baseline."""
    slow = REPORT.results[1].verdicts[0]
    new = [Verdict(Word.NEW, f"metric_{number}", "no baseline on nvidia-h200") for number in range(24)]
    report = msgspec.structs.replace(REPORT, results=[result("slow[64]", *new, slow)], stale=[])
    text = "\n".join(line.text for line in render_summary(report).lines)
    assert text.count("NEW") == 1
    assert "NEW 24 metrics\n      no baseline: metric_0, metric_1" in text
    assert "metric_7 … and 16 more" in text


def test_a_cut_short_run_says_so() -> None:
    assert render_summary(msgspec.structs.replace(REPORT, complete=False)).title.endswith("(run was cut short)")


def test_noise_is_one_line_a_case_the_blindest_first() -> None:
    def noisy(name: str, smallest: float) -> CaseResult:
        return result(name, Verdict(Word.UNRESOLVED, "device_time_us", "NOISY: …", smallest=smallest))

    conflict = result(
        "c", Verdict(Word.UNRESOLVED, "device_time_us", "CONFLICT: two say so, one does not", smallest=0.02)
    )
    report = msgspec.structs.replace(REPORT, results=[noisy("a", 0.04), noisy("b", 0.5), conflict], stale=[])
    text = [line.text for line in render_summary(report).lines][5:]
    assert text == [
        "UNRESOLVED  c/forward",
        "    UNRESOLVED device_time_us",
        "      CONFLICT: two say so, one does not",
        "      smallest slowdown that would have been seen: 2.0 %",
        "    reproduce: pytest --perfguard tests/test_suite.py::test_c",
        "    compare:   perfguard compare -- tests/test_suite.py::test_c",
        "UNRESOLVED  2 cases: too noisy to judge; the smallest slowdown that would have been seen:",
        "    b/forward: device_time_us 50.0 %",
        "    a/forward: device_time_us 4.0 %",
    ]


def test_unchanged_cases_are_counted_and_listed_only_where_they_were_timed() -> None:
    same = Verdict(Word.UNCHANGED, "device_time_us", "fingerprint is as recorded", before=61.2)
    host = Reading("host_time_us", Unit.MICROSECONDS, 9.0, timer="host-u16")
    unread = msgspec.structs.replace(result("unread", same), readings=[host])
    report = msgspec.structs.replace(REPORT, results=[unread, result("control", same)], stale=[])
    text = [line.text for line in render_summary(report).lines][1:]
    assert text == [
        "case             time     throughput  % of copy  verdict",
        "control/forward  61.2 µs  4 TB/s      95 %       UNCHANGED",
        "UNCHANGED  2 cases: the device runs the same code as when they were recorded; 1 timed as controls",
    ]
