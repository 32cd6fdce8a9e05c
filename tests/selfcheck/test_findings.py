"""The promises, and the table, of findings that are made up."""

from __future__ import annotations

import msgspec
import pytest

from perfguard.model.records import Toolchain
from perfguard.selfcheck.findings import (
    SCHEMA,
    SLOWDOWNS,
    Acquittal,
    Findings,
    Injected,
    Power,
    Runs,
    TimerNoise,
)
from perfguard.selfcheck.rates import Rate, clustered_rate
from perfguard.selfcheck.table import curve, show
from tests.selfcheck.simulated import HARDWARE


def rate(hits: int, trials: int) -> Rate:
    return clustered_rate((number, int(number < hits), 1) for number in range(trials))


def powers(found: dict[float, int]) -> list[Power]:
    """Of 100 cases at each slowdown."""
    return [Power(slowdown, rate(found.get(slowdown, 100), 100)) for slowdown in SLOWDOWNS]


def runs(alarms: int, suites: int, undecided: int = 0) -> Runs:
    return Runs(6, rate(alarms, 2000), rate(alarms, suites), rate(0, suites), rate(undecided, 2000), 3.25)


FINDINGS = Findings(
    schema=SCHEMA, perfguard="0", date="2026-11-21", hardware=HARDWARE, toolchain=Toolchain(), commit=None,
    sessions=20, first_session="2026-11-20T10:00:00", last_session="2026-11-21T10:00:00", stored=8,
    cases=44, timed_cases=40, left_out=["suite [odd] case: measured in 2 of 20 sessions"], seconds_per_case=0.12,
    timers=[TimerNoise("span_us", "clock", 40, 0.0021, 0.8, 0.95, 0.6, 0.9, 0.021)],
    exact=rate(0, 20), apart=runs(0, 20), alarms=[], resampled_cases=40, resampled=runs(0, 100),
    power=powers({0.01: 10, 0.02: 95}), promised=rate(100, 100),
    screen=[Acquittal(0.0, rate(97, 100), {"outside its record": 3}), Acquittal(0.03, rate(0, 100), {"far off": 99})],
    injected=[Injected(10.0, 0.03, 0.0302, 0.0004, 0.02, rate(20, 20), 3.1)],
)  # fmt: skip

CPU = msgspec.structs.replace(HARDWARE, vendor="cpu")


def kept(findings: Findings) -> list[bool | None]:
    return [promise.kept for promise in findings.promises()]


def change(**fields: object) -> Findings:
    return msgspec.structs.replace(FINDINGS, **fields)


def test_promises_are_kept_broken_or_not_shown() -> None:
    """Exact metrics, sessions, resampled, undecided, 2 %, what is promised, the real kernel."""
    assert kept(FINDINGS) == [True] * 7
    # One alarm in 20 sessions does not refute 1 %; five do.
    assert kept(change(exact=rate(1, 20)))[0] is True
    assert kept(change(exact=rate(5, 20)))[0] is False
    assert kept(change(apart=runs(5, 20)))[1] is False
    assert kept(change(resampled=runs(9, 100)))[2] is False
    assert kept(change(resampled=runs(0, 100, undecided=200)))[3] is False
    assert kept(change(power=powers({0.02: 80})))[4:6] == [False, True]
    assert kept(change(power=powers({0.02: 88})))[4:6] == [None, True]  # 100 tell too little
    assert kept(change(promised=rate(85, 100)))[4:6] == [True, False]
    assert kept(change(power=[], promised=rate(0, 0)))[4:6] == [None, None]


def test_a_processor_promises_less() -> None:
    texts = [promise.text for promise in change(hardware=CPU, injection_note="needs a GPU").promises()]
    assert not any("undecided" in text or "at 2 %" in text for text in texts)
    assert "power: at least 95 % at what is promised, injected samples" in texts


def test_the_real_kernel_must_be_found_at_every_length() -> None:
    missed = Injected(3.0, 0.03, 0.0302, 0.0004, 0.09, rate(0, 20), 16.0)
    assert kept(change(injected=[missed]))[6] is False
    assert kept(change(injected=[*FINDINGS.injected, missed]))[6] is False  # half of 20 runs' findings
    assert kept(change(injected=[msgspec.structs.replace(missed, aimed=0.02)]))[6] is None
    without = change(injected=[], injection_note="not run: needs a GPU")
    promise = list(without.promises())[6]
    assert (promise.kept, promise.seen) == (None, "not run: needs a GPU")  # never green


def test_findings_survive_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(FINDINGS), type=Findings) == FINDINGS


def test_the_curve_rises_with_power() -> None:
    assert curve([0.0, 0.49, 0.5, 1.0]) == "▁▄▅█"


def test_the_table_says_everything(capsys: pytest.CaptureFixture[str]) -> None:
    show(FINDINGS)
    text = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0].endswith("20 sessions, 2026-11-20 to 2026-11-21; 44 cases, 40 of them timed, 0.12 s a case")
    assert "span_us clock 40 0.21 % 80 % 95 % 60 % 90 % 2.1 %" in lines
    assert "exact metrics moved 0 of 20 (0.00 %, 95 % interval 0.00 % to 16.84 %)" in lines
    assert [line.rpartition("; ")[2] for line in lines if line.startswith("times undecided")] == [
        "3.2 pairs a case"
    ] * 2
    assert "found 10 % 95 % 100 % 100 % 100 % ▁████" in lines
    assert "unchanged 97 % outside its record" in lines
    assert "3 % slower 0 % far off" in lines
    assert "10 µs 3 % +3.0 % 0.04 % 2.0 % 20 of 20 3.1" in lines
    assert "suite [odd] case: measured in 2 of 20 sessions" in lines
    assert "resampled: 100 suites of 40 cases, 6 process pairs at most" in text
    assert text.count("kept ") == 7
    show(change(injected=[], injection_note="not run: needs a GPU", alarms=["run 3: [a] SLOWER"]))
    text = capsys.readouterr().out
    assert "a real kernel made slower: not run: needs a GPU" in text
    assert "run 3: [a] SLOWER" in text
    assert text.count("kept ") == 6
