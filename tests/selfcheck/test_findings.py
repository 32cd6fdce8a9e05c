"""The promises, the table and the plot of findings that are made up."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from perfguard.records import Toolchain
from perfguard.selfcheck.findings import SCHEMA, SLOWDOWNS, Detector, Findings, Injected, Power, TimerNoise
from perfguard.selfcheck.plot import plot
from perfguard.selfcheck.rates import Rate, clustered_rate
from perfguard.selfcheck.table import curve, show
from tests.selfcheck.simulated import HARDWARE


def rate(hits: int, trials: int) -> Rate:
    return clustered_rate((number, int(number < hits), 1) for number in range(trials))


def detector(name: str, alarms: int, found: dict[float, int]) -> Detector:
    """Of 100 suites, and of 100 cases at each slowdown."""
    power = [Power(slowdown, rate(found.get(slowdown, 100), 100), rate(50, 100)) for slowdown in SLOWDOWNS]
    return Detector(name, rate(alarms, 2000), rate(alarms, 100), power)


FINDINGS = Findings(
    schema=SCHEMA, perfguard="0", date="2026-11-21", hardware=HARDWARE, toolchain=Toolchain(), commit=None,
    sessions=20, first_session="2026-11-20T10:00:00", last_session="2026-11-21T10:00:00", stored=8, confirmations=3,
    cases=40, left_out=["suite [odd] case: measured in 2 of 20 sessions"], seconds_per_case=0.12,
    timers=[TimerNoise("span_us", "clock", 40, 0.0021, 0.8, 0.95, 0.6, 0.9, 0.05, 0.041, {"NOISY": 3})],
    decisions=rate(0, 800), suites=rate(0, 20), alarms=[], improvements=rate(0, 20), resampled_cases=40,
    resampled=detector("perfguard", 0, {0.01: 10, 0.02: 95}),
    rivals=[detector("fixed 5 % gate", 3, {0.01: 0, 0.02: 0, 0.03: 1, 0.05: 50}), Detector("other", note="not read")],
    injected=[Injected(10.0, 0.03, 0.0302, 0.0004, 0.02, rate(20, 20))],
)  # fmt: skip


def kept(findings: Findings) -> list[bool | None]:
    return [promise.kept for promise in findings.promises()]


def change(**fields: object) -> Findings:
    return msgspec.structs.replace(FINDINGS, **fields)


def test_promises_are_kept_broken_or_not_shown() -> None:
    assert kept(FINDINGS) == [True] * 5
    # One alarm in 20 sessions does not refute 1 %; five do.
    assert kept(change(suites=rate(1, 20)))[0] is True
    assert kept(change(suites=rate(5, 20)))[0] is False
    assert kept(change(resampled=detector("perfguard", 9, {})))[1] is False
    assert kept(change(resampled=detector("perfguard", 0, {0.02: 80})))[2:4] == [False, True]
    assert kept(change(resampled=detector("perfguard", 0, {0.02: 88})))[2:4] == [None, True]  # 100 tell too little
    assert kept(change(resampled=detector("perfguard", 0, {0.03: 85})))[2:4] == [True, False]
    unable = Detector("perfguard", rate(0, 9), rate(0, 9), [Power(s, rate(0, 0), rate(0, 9)) for s in SLOWDOWNS])
    assert kept(change(resampled=unable))[2:4] == [None, None]


def test_the_real_kernel_must_be_found_where_it_can_be_seen() -> None:
    missed = Injected(10.0, 0.03, 0.0302, 0.0004, 0.02, rate(10, 20))
    unseen = Injected(3.0, 0.03, 0.0302, 0.0004, 0.09, rate(0, 20))
    assert kept(change(injected=[missed]))[4] is False
    assert kept(change(injected=[*FINDINGS.injected, unseen]))[4] is True
    assert kept(change(injected=[unseen]))[4] is None
    without = change(injected=[], injection_note="not run: needs a GPU")
    promise = list(without.promises())[4]
    assert (promise.kept, promise.seen) == (None, "not run: needs a GPU")  # never green


def test_findings_survive_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(FINDINGS), type=Findings) == FINDINGS


def test_the_curve_rises_with_power() -> None:
    assert curve([0.0, 0.49, 0.5, 1.0]) == "▁▄▅█"


def test_the_table_says_everything(capsys: pytest.CaptureFixture[str]) -> None:
    show(FINDINGS)
    text = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "span_us clock 40 0.21 % 80 % 95 % 60 % 90 % 5 % 4.1 %" in lines
    assert "perfguard 0.000 % 0 of 100 10 % 95 % 100 % 100 % 100 % ▁████" in lines
    assert "over all cases 50 % 50 % 50 % 50 % 50 % ▅▅▅▅▅" in lines
    assert "fixed 5 % gate 0.150 % 3 of 100 0 % 0 % 1 % 50 % 100 % ▁▁▁▅█" in lines
    assert "10 µs 3 % +3.0 % 0.04 % 2.0 % 20 of 20" in lines
    assert "suite [odd] case: measured in 2 of 20 sessions" in lines
    assert "resampled: 100 suites" in text
    assert text.count("kept ") == 5
    show(change(injected=[], injection_note="not run: needs a GPU", alarms=["session 3: [a] SLOWER"]))
    text = capsys.readouterr().out
    assert "a real kernel made slower: not run: needs a GPU" in text
    assert "session 3: [a] SLOWER" in text
    assert text.count("kept ") == 4


def test_the_plot_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    told = plot(FINDINGS, tmp_path)
    assert told == [f"plot: {tmp_path / 'selfcheck.png'}", f"plot: {tmp_path / 'selfcheck.svg'}"]
    assert (tmp_path / "selfcheck.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "selfcheck.svg").read_text()


def test_where_no_case_can_see_the_promise_the_curves_are_over_all_cases(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    power = [Power(slowdown, rate(0, 0), rate(50, 100)) for slowdown in SLOWDOWNS]
    blind = msgspec.structs.replace(FINDINGS, resampled=msgspec.structs.replace(FINDINGS.resampled, power=power))
    plot(blind, tmp_path)
    labels = (tmp_path / "selfcheck.svg").read_text()
    assert "perfguard, all cases" in labels
    assert "perfguard, cases that can see" not in labels


def test_without_matplotlib_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    (line,) = plot(FINDINGS, tmp_path)
    assert "matplotlib is not installed; pip install 'perfguard[selfcheck]'" in line
    assert list(tmp_path.iterdir()) == []
