"""Worlds in which the judge has to hold: how processes scatter, what a place does, and what the code did.

Times are natural logarithms round the centre of a case. A process (a stored session, the run, each side of a process
pair) has one value a case; its noise is shared by nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfguard.judge.pair_test import MOST_PAIRS
from perfguard.model.records import (
    Baseline,
    Case,
    CaseBaseline,
    CaseResult,
    Conditions,
    PairReading,
    Provenance,
    Reading,
    TimedEntry,
)
from perfguard.model.units import Unit, significant

Logs = npt.NDArray[np.float64]
Random = np.random.Generator

SIGMA = 0.003  # of a process, in the median over the cases
WITHIN = 0.0005  # what one process reads of itself from block to block, as a median of blocks
MODES = 0.015  # the two states of bimodal processes lie so far apart; either is as likely
WILD_SHARE, WILD = 0.05, (0.03, 0.30)  # of the values of a process; by so much they are too slow, log-uniform
LAG = 0.7
SECOND_CLOCK, CLOCK_SHIFT = 0.3, 0.02  # share of sessions in the device's second clock state, and what it costs
DRIFT = 0.02  # at most, either way, uniform, common to the cases
MHZ = 1755.0
CENTRE_US = 50.0
_SKEW = 0.75  # of ln x
_MEDIAN_T2 = 0.816496580927726  # of |t| with two degrees of freedom

NOISES = ("normal", "skewed", "t3", "unlike", "wild", "bimodal", "lag")
PLACES = ("same board", "other board 0.2 %", "other board 0.4 %", "drift", "clock states")
_APART = {"other board 0.2 %": 0.002, "other board 0.4 %": 0.004}  # median deviation of a case's level


@dataclass(frozen=True)
class World:
    """How processes scatter (one of NOISES) and what the place does (one of PLACES)."""

    noise: str
    place: str

    @property
    def board(self) -> str:
        """On which the run is; its records are of board "a"."""
        return "b" if self.place in _APART else "a"


@dataclass(frozen=True)
class Suite:
    """How many changed and unchanged cases a run has, and how many sessions are stored of each."""

    cases: int
    controls: int
    stored: int


@dataclass(frozen=True)
class Truth:
    """What the code did.

    Attributes:
        kind: nothing, five, tenth, half, all: how many changed cases are slower; mixed: half slower, half faster;
            power: all are slower because the clock fell, the cycles are as they were.
        effect: by how much, relative.
    """

    kind: str = "nothing"
    effect: float = 0.0

    def levels(self, cases: int) -> Logs | None:
        """ln of what the code did to each changed case; None where a suite of that size has no such truth."""
        slow = {"nothing": 0, "five": 5, "tenth": cases // 10, "half": cases // 2, "mixed": cases // 2}.get(
            self.kind, cases
        )
        if slow > cases or (slow == 0 and self.kind != "nothing") or (self.kind == "five" and cases == slow):
            return None
        levels = np.zeros(cases)
        levels[:slow] = np.log1p(self.effect)
        if self.kind == "mixed":
            levels[slow : 2 * slow] = -np.log1p(self.effect)
        return levels


def case_sigmas(world: World, cases: int, random: Random) -> Logs:
    """Standard deviation of each case's processes."""
    return SIGMA * np.exp(random.standard_normal(cases) if world.noise == "unlike" else np.zeros(cases))


def process_noise(world: World, sigma: Logs, processes: int, random: Random) -> Logs:
    """processes x cases, each value drawn anew."""
    shape = (processes, sigma.size)
    if world.noise == "t3":
        drawn = random.standard_t(3, shape) / np.sqrt(3)  # t3 has variance 3
    elif world.noise == "skewed":
        variance = np.expm1(_SKEW**2) * np.exp(_SKEW**2)
        drawn = (np.exp(_SKEW * random.standard_normal(shape)) - np.exp(_SKEW**2 / 2)) / np.sqrt(variance)
    else:
        drawn = random.standard_normal(shape)
    noise: Logs = sigma * drawn + WITHIN * random.standard_normal(shape)
    if world.noise == "bimodal":
        noise += MODES * (random.random(shape) < 0.5)
    if world.noise == "wild":
        low, high = np.log(WILD)
        noise += (random.random(shape) < WILD_SHARE) * np.log1p(np.exp(random.uniform(low, high, shape)))
    return noise


def stored_noise(world: World, sigma: Logs, sessions: int, random: Random) -> Logs:
    """sessions x cases, as they were recorded one after the other."""
    noise = process_noise(world, sigma, sessions, random)
    if world.noise == "lag":
        for session in range(1, sessions):
            noise[session] = LAG * noise[session - 1] + np.sqrt(1 - LAG**2) * noise[session]
    return noise + _clock_states(world, sessions, random)


def _clock_states(world: World, sessions: int, random: Random) -> Logs:
    """sessions x 1: what the device's clock does to all cases of a session alike."""
    second = random.random((sessions, 1)) < SECOND_CLOCK
    return CLOCK_SHIFT * second * (world.place == "clock states")


def place_levels(world: World, cases: int, random: Random) -> Logs:
    """What board and day do to each case, in all processes of the run."""
    levels: Logs = np.zeros(cases)
    if world.place in _APART:
        levels = levels + _APART[world.place] / _MEDIAN_T2 * random.standard_t(2, cases)
    if world.place == "drift":
        levels = levels + random.uniform(-DRIFT, DRIFT)
    return levels


def baseline_of(stored: Logs, controls: int) -> Baseline:
    """Stored sessions x cases; the first `controls` have a fingerprint of their code."""
    cases = {}
    for number, sessions in enumerate((CENTRE_US * np.exp(stored.T)).tolist()):
        entry = TimedEntry([significant(value) for value in sessions], "clock")
        code = {"code": "same"} if number < controls else {}
        cases[f"case{number}/forward"] = CaseBaseline({"span": entry, **code}, "x")
    return Baseline("here", "suite", {"": Provenance(board="a")}, cases)


def results_of(now: Logs, controls: int, board: str) -> list[CaseResult]:
    """What the run's process reads of every case."""
    code = Reading("code", Unit.TEXT, "same", covers=["span"])
    results = []
    for number, value in enumerate((CENTRE_US * np.exp(now)).tolist()):
        span = Reading("span", Unit.MICROSECONDS, value, timer="clock")
        readings = [span, code] if number < controls else [span]
        case = Case("suite", f"case{number}", "forward")
        results.append(CaseResult(case, "x", readings=readings, conditions=Conditions(board=board)))
    return results


def pair_readings(world: World, sigma: Logs, levels: Logs, truth: Truth, random: Random) -> list[list[PairReading]]:
    """For every case what each of MOST_PAIRS process pairs would read: three processes on one device, by turns.

    Blocks take turns, so that the device's clock state is the same for the three.
    """
    base, copy, work = (process_noise(world, sigma, MOST_PAIRS, random) for _ in range(3))
    shared = place_levels(world, sigma.size, random) + _clock_states(world, MOST_PAIRS, random)
    change, control = work + levels - base, copy - base
    base_us, work_us = CENTRE_US * np.exp(base + shared), CENTRE_US * np.exp(work + levels + shared)
    clock = MHZ / (1 + truth.effect) if truth.kind == "power" else MHZ
    columns = (each.T.tolist() for each in (change, control, base_us, work_us))
    return [
        [PairReading(pair, *values, MHZ, clock) for pair, values in enumerate(zip(*case, strict=True), 1)]
        for case in zip(*columns, strict=True)
    ]
