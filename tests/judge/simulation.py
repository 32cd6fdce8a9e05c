"""Suites of simulated sessions, judged by the real ladder from screen to confirmation.

A session is a common shift of the machine (normal) plus noise of each case (Student t4); the deviations of the cases
are log-normal around 0.3 %. Every session value stands in the middle of three block medians.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.noise.__main__ import of_baselines
from perfguard.judge import Lane, common_modes, judge_case
from perfguard.records import (
    Baseline,
    Case,
    CaseBaseline,
    CaseResult,
    Hardware,
    Reading,
    TimedEntry,
    Toolchain,
    Verdict,
    Word,
)
from perfguard.units import Unit, significant

HARDWARE = Hardware(slug="here", vendor="fake", name="Here", architecture="x1")
CENTRE = 50.0  # µs
BLOCKS = 0.002  # spread of block medians inside a session
LEAST = 5  # sessions that tell a deviation
Logs = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Suite:
    """How a simulated suite behaves.

    Attributes:
        unlike: standard deviation of ln σ between the cases.
        common: standard deviation of the machine's shift between sessions.
        controls: how many of the cases are unchanged and read all the same. The rest is judged.
        quiet: further cases that fresh processes measure where there are no controls.
        apart: standard deviation of what the machine that is judged on does to each case alone, in all its sessions.
        measured: deviations of real cases, to draw from instead of `median` and `unlike`.
    """

    cases: int = 200
    stored: int = 8
    fresh: int = 3
    median: float = 0.003
    unlike: float = 0.3
    common: float = 0.005
    controls: int = 0
    quiet: int = 20
    apart: float = 0.0
    measured: tuple[float, ...] = field(default=(), repr=False)


def draw(suite: Suite, random: np.random.Generator, slowdown: float = 0.0, slow: int | None = None) -> Logs:
    """Block medians, µs: sessions (stored, judged, fresh) x cases x 3."""
    sigma = suite.median * np.exp(suite.unlike * random.standard_normal(suite.cases))
    if suite.measured:
        sigma = random.choice(suite.measured, suite.cases)
    shape = (suite.stored + 1 + suite.fresh, suite.cases)
    logs = sigma * random.standard_t(4, shape) / np.sqrt(2)  # t4 has variance 2
    logs += suite.common * random.standard_normal((shape[0], 1))
    if suite.apart:
        logs[suite.stored :] += suite.apart * random.standard_normal(suite.cases)
    last = suite.cases if slow is None else suite.controls + slow
    logs[suite.stored :, suite.controls : last] += np.log1p(slowdown)
    offsets = np.abs(BLOCKS * random.standard_normal((2, *shape)))
    blocks: Logs = CENTRE * np.exp(np.stack([logs - offsets[0], logs, logs + offsets[1]], axis=-1))
    return blocks


def judge(suite: Suite, random: np.random.Generator, slowdown: float = 0.0, slow: int | None = None) -> list[Verdict]:
    """Draw one suite and judge its cases after the controls; of those, the first `slow` (all) are slower now."""
    blocks = draw(suite, random, slowdown, slow)
    lane = Lane(HARDWARE, Toolchain(), {"suite": _baseline(blocks[: suite.stored, :, 1], suite.controls)})
    session = _session(blocks[suite.stored], suite.controls)
    modes = common_modes(session, lane)
    judged = [msgspec.structs.replace(r, verdicts=judge_case(r, lane, modes=modes)) for r in session[suite.controls :]]
    suspects = {(result.case.suite, result.case.key) for result in judged if result.is_suspect}
    if suspects:
        quiet = [judged[at] for at in random.permutation(len(judged)) if not judged[at].is_suspect]
        quiet = quiet[: 0 if suite.controls else suite.quiet]
        read = suspects | {(result.case.suite, result.case.key) for result in [*session[: suite.controls], *quiet]}
        again = [_only(_session(each, suite.controls), read) for each in blocks[suite.stored + 1 :]]
        fresh_modes = [common_modes(results, lane, suspects=suspects) for results in again]
        for at, result in enumerate(judged):
            if result.is_suspect:
                fresh = [next(r for r in results if r.case == result.case) for results in again]
                verdicts = judge_case(result, lane, fresh, modes=modes, fresh_modes=fresh_modes)
                judged[at] = msgspec.structs.replace(result, verdicts=verdicts)
    return [verdict for result in judged for verdict in result.verdicts]


def _baseline(times: Logs, controls: int) -> Baseline:
    cases = {}
    for number, sessions in enumerate(times.T.tolist()):
        entry = TimedEntry([significant(value) for value in sessions], "clock")
        code: dict[str, str] = {"code": "same"} if number < controls else {}
        cases[f"case{number}/forward"] = CaseBaseline({"span": entry, **code}, "x")
    return Baseline("here", "suite", cases=cases)


def _session(blocks: Logs, controls: int) -> list[CaseResult]:
    """What one process read of every case."""
    code = Reading("code", Unit.TEXT, "same", covers=["span"])
    results = []
    for number, medians in enumerate(blocks.tolist()):
        span = Reading("span", Unit.MICROSECONDS, medians[1], timer="clock", blocks=medians)
        readings = [span, code] if number < controls else [span]
        results.append(CaseResult(Case("suite", f"case{number}", "forward"), "x", readings=readings))
    return results


def _only(results: Sequence[CaseResult], read: set[tuple[str, str]]) -> list[CaseResult]:
    return [result for result in results if (result.case.suite, result.case.key) in read]


def able(verdicts: Sequence[Verdict], promise: float = 0.03) -> Iterator[Verdict]:
    """The verdicts that could have seen a change of `promise`."""
    return (verdict for verdict in verdicts if verdict.smallest is not None and verdict.smallest <= promise)


def alarmed(verdicts: Sequence[Verdict], word: Word = Word.SLOWER) -> bool:
    return any(verdict.word is word for verdict in verdicts)


def measured(folder: Path) -> tuple[float, ...]:
    """What the device times in the baselines of `folder` vary by between the processes that recorded them."""
    stored = of_baselines(folder)["device_time_us"].values()
    return tuple(float(np.std(np.log(times), ddof=1)) for times in stored if len(times) >= LEAST)


def main(suites: int, folder: Path | None) -> None:
    """Print the rates of docs/judging.md; with `folder`, those of the noise that its baselines hold."""
    simulated = [Suite(unlike=unlike, controls=controls) for controls in (0, 20) for unlike in (0.3, 0.6)]
    if folder is not None:  # what was measured holds what is common to a session
        deviations = measured(folder)
        print(f"{len(deviations)} measured deviations, median {np.median(deviations):.2%}")
        simulated = [
            Suite(stored=stored, common=0.0, controls=controls, measured=deviations)
            for stored in (5, 8)
            for controls in (0, 20)
        ]
    for suite in simulated:
        random = np.random.default_rng(101)
        unchanged = [judge(suite, random) for _ in range(suites)]
        counts = [sum(alarmed(verdicts, word) for verdicts in unchanged) for word in (Word.SLOWER, Word.FASTER)]
        print(f"{suite}\n  false: {counts[0]} SLOWER, {counts[1]} FASTER of {suites} suites", flush=True)
        for slowdown in (0.01, 0.02, 0.03, 0.05):
            random = np.random.default_rng(202)
            drawn = [judge(suite, random, slowdown, 20)[:20] for _ in range(max(suites * 4 // 15, 1))]
            slowed = [verdict for verdicts in drawn for verdict in verdicts]
            seeing = list(able(slowed))
            found, everywhere = ([v.word is Word.SLOWER for v in those] for those in (seeing, slowed))
            print(
                f"  {slowdown:.0%}: power {np.mean(found):.3f} over {len(seeing) / len(slowed):.1%} with MDE <= 3 %, "
                f"{np.mean(everywhere):.3f} over all",
                flush=True,
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 75, Path(sys.argv[2]) if len(sys.argv) > 2 else None)
