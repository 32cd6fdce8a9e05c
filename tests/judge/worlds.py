"""Worlds in which the judge has to hold: how processes scatter, what a place does, and what the code did.

How processes scatter is data: a line of `data/noises.json` for each noise, whose fields are those of `Noise`.

Times are natural logarithms round the centre of a case. A process (a stored session, the run, each side of a process
pair) has one value a case; its noise is shared by nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random as Chance

import msgspec
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
from perfguard.session.pairing.sides import SIDES, starting_orders

Logs = npt.NDArray[np.float64]
Random = np.random.Generator

SIGMA = 0.003  # of a process, in the median over the cases
WITHIN = 0.0005  # what one process reads of itself from block to block, as a median of blocks
WILD = 0.03, 0.30  # a wild value is too slow by so much, log-uniform
SECOND_CLOCK, CLOCK_SHIFT = 0.3, 0.02  # share of sessions in the device's second clock state, and what it costs
DRIFT = 0.02  # at most, either way, uniform, common to the cases
MHZ = 1755.0
CENTRE_US = 50.0
_MEDIAN_T2 = 0.816496580927726  # of |t| with two degrees of freedom


class Noise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the processes of a suite scatter.

    Attributes:
        told: in a few words; empty: as `docs/judging-rates.md` explains it.
        degrees: of Student's t; 0: normal.
        skew: σ of the logarithm of log-normal noise; 0: symmetrical.
        unlike: σ of the logarithm of the cases' σ.
        noisy: share of the cases whose σ is `times` that of the others.
        states: how far each state lies above the first.
        chances: of each state.
        share: of the cases, which have states.
        together: whether all cases of a process are in one state.
        wild: share of the values that are 3 to 30 % too slow.
        sides: σ of the processes of base, copy and working tree, over the case's.
        places: by how much the process that starts first, second and third is slower.
        lag: correlation of each stored session with the one before.
    """

    told: str = ""
    degrees: int = 0
    skew: float = 0.0
    unlike: float = 0.0
    noisy: float = 0.0
    times: float = 10.0
    states: tuple[float, ...] = ()
    chances: tuple[float, ...] = ()
    share: float = 1.0
    together: bool = False
    wild: float = 0.0
    sides: tuple[float, float, float] = (1.0, 1.0, 1.0)
    places: tuple[float, float, float] = (0.0, 0.0, 0.0)
    lag: float = 0.0


_FILE = Path(__file__).parent / "data" / "noises.json"
NOISE = msgspec.json.decode(_FILE.read_bytes(), type=dict[str, Noise])
#: Those that `told` explains break tests that rely on normal noise.
HARD = tuple(name for name, noise in NOISE.items() if noise.told)
NOISES = tuple(name for name in NOISE if name not in HARD)
PLACES = ("same board", "other board 0.2 %", "other board 0.4 %", "drift", "clock states")
_APART = {"other board 0.2 %": 0.002, "other board 0.4 %": 0.004}  # median deviation of a case's level


@dataclass(frozen=True)
class World:
    """How processes scatter (one of NOISES or HARD) and what the place does (one of PLACES)."""

    noise: str
    place: str

    @property
    def scatter(self) -> Noise:
        return NOISE[self.noise]

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


@dataclass(frozen=True)
class Cases:
    """σ of each case's processes, and which cases have states."""

    sigma: Logs
    have_states: npt.NDArray[np.bool_]


def draw_cases(world: World, cases: int, random: Random) -> Cases:
    noise = world.scatter
    sigma = SIGMA * np.exp(noise.unlike * random.standard_normal(cases))
    sigma[random.permutation(cases)[: round(noise.noisy * cases)]] *= noise.times
    have_states = np.zeros(cases, dtype=bool)
    have_states[random.permutation(cases)[: max(1, round(noise.share * cases))]] = True
    return Cases(sigma, have_states)


def process_noise(world: World, cases: Cases, processes: int, random: Random, side: int = 0) -> Logs:
    """processes x cases, each value drawn anew."""
    noise, shape = world.scatter, (processes, cases.sigma.size)
    if noise.degrees:
        drawn = random.standard_t(noise.degrees, shape) * np.sqrt(1 - 2 / noise.degrees)
    elif noise.skew:
        variance = np.expm1(noise.skew**2) * np.exp(noise.skew**2)
        drawn = (np.exp(noise.skew * random.standard_normal(shape)) - np.exp(noise.skew**2 / 2)) / np.sqrt(variance)
    else:
        drawn = random.standard_normal(shape)
    found: Logs = noise.sides[side] * cases.sigma * drawn + WITHIN * random.standard_normal(shape)
    if noise.states:
        each = (processes, 1) if noise.together else shape
        found += random.choice(noise.states, each, p=noise.chances) * cases.have_states
    if noise.wild:
        low, high = np.log(WILD)
        found += (random.random(shape) < noise.wild) * np.log1p(np.exp(random.uniform(low, high, shape)))
    return found


def stored_noise(world: World, cases: Cases, sessions: int, random: Random) -> Logs:
    """sessions x cases, as they were recorded one after the other."""
    noise, lag = process_noise(world, cases, sessions, random), world.scatter.lag
    for session in range(1, sessions):
        noise[session] = lag * noise[session - 1] + np.sqrt(1 - lag**2) * noise[session]
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


def pair_readings(world: World, cases: Cases, levels: Logs, truth: Truth, random: Random) -> list[list[PairReading]]:
    """For every case what each of MOST_PAIRS process pairs would read: three processes on one device, by turns.

    Blocks take turns, so that the device's clock state is the same for the three. They start in the engine's order.
    """
    base, copy, work = (process_noise(world, cases, MOST_PAIRS, random, side) for side in range(3))
    chance = Chance(int(random.integers(2**32)))
    orders = [order for _ in range(0, MOST_PAIRS, len(SIDES)) for order in starting_orders(chance)][:MOST_PAIRS]
    for side, values in zip(SIDES, (base, copy, work), strict=True):
        values += np.array([[world.scatter.places[order.index(side)]] for order in orders])
    shared = place_levels(world, cases.sigma.size, random) + _clock_states(world, MOST_PAIRS, random)
    change, control = work + levels - base, copy - base
    base_us, work_us = CENTRE_US * np.exp(base + shared), CENTRE_US * np.exp(work + levels + shared)
    clock = MHZ / (1 + truth.effect) if truth.kind == "power" else MHZ
    columns = (each.T.tolist() for each in (change, control, base_us, work_us))
    return [
        [PairReading(pair, *values, MHZ, clock) for pair, values in enumerate(zip(*case, strict=True), 1)]
        for case in zip(*columns, strict=True)
    ]
