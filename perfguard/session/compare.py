"""`perfguard compare BASE [-- pytest arguments]`: the merge base and the working tree, measured side by side by live
processes, from the repository to the exit status. It removes all its files before it returns."""

from __future__ import annotations

import argparse
import datetime
import math
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console

from perfguard import __version__
from perfguard.judge.exact import because, describe_difference, judge_exact, spelled_out
from perfguard.judge.pair_test import in_cycles, in_states
from perfguard.judge.run_verdicts import exit_status, middle, paired_readings_of
from perfguard.judge.screen import covered_beside
from perfguard.measure.binaries.comparison import Sides, compare_cases
from perfguard.measure.binaries.compiler import Compiler
from perfguard.measure.devices import open_device
from perfguard.model.atomic_files import check_file, write_atomically
from perfguard.model.config import Config, find_project, read_settings
from perfguard.model.errors import ExitStatus, UsageError
from perfguard.model.records import TOO_NOISY, URGENCY, CaseId, CaseResult, Reading, Value, Word
from perfguard.model.records.case import with_readings
from perfguard.model.units import counted
from perfguard.render.comparison import (
    SCHEMA,
    Comparison,
    KernelRow,
    Row,
    dump_comparison,
    kernel_rows,
    print_comparison,
)
from perfguard.session.child import OWN_PACKAGES, child_command, named_device, packages_at
from perfguard.session.device_lock import DeviceLock
from perfguard.session.followed import Followed
from perfguard.session.pairing.bases import find_base
from perfguard.session.pairing.outcome import TimeId
from perfguard.session.pairing.pairs import Site, starts_ahead
from perfguard.session.pairing.processes import Interrupts, Side
from perfguard.session.pairing.tally import Tally, bad, why_not_compared
from perfguard.session.pairing.worktrees import find_repository

INTERRUPTED = "interrupted"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `perfguard compare`."""
    parser.description = (
        "Measures the merge base of HEAD and BASE and the working tree, uncommitted changes included, side by side "
        "in live processes on one device, block against block. Needs no stored baseline and writes none."
    )
    parser.add_argument(
        "base",
        metavar="BASE",
        nargs="?",
        help="branch, tag or commit that the work will be merged into (default: the remote's or local main branch)",
    )
    parser.add_argument(
        "--base-python",
        type=Path,
        metavar="PATH",
        help="an interpreter, or a folder of site-packages, that the base runs with: compares two environments "
        "(torch, Triton, the driver's libraries), with HEAD as BASE of the same code",
    )
    parser.add_argument("--setup", metavar="CMD", default="", help="run in each worktree first, to build extensions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was found to FILE")
    parser.add_argument(
        "pytest_arguments", nargs="*", metavar="-- PYTEST ARGUMENTS", help="which tests; as after `pytest`"
    )


def run(options: argparse.Namespace) -> int:
    """Compare the working tree around the current folder with its merge base, print, and return the exit status.

    A signal, a limit or a process that dies ends the comparison early; the results so far are printed.

    Raises:
        UsageError: not a git checkout, an unknown base, a bad option or setting, code that is not the worktree's.
        DeviceError: no such device, or it is in use for too long.
    """
    try:
        with Interrupts() as interrupts:
            return int(_compare(options, Path.cwd(), interrupts))
    except KeyboardInterrupt:
        return int(ExitStatus.INTERRUPTED)


def _compare(options: argparse.Namespace, folder: Path, interrupts: Interrupts) -> ExitStatus:
    if options.json is not None:
        check_file(options.json)
    repository = find_repository(folder)
    project = find_project(folder)
    settings = read_settings(project)
    name = options.base or repository.main_branch()
    base = find_base(folder, name, [project / settings.baselines, project / settings.reports])
    if base.commit is None:
        raise UsageError(base.problem)
    packages = OWN_PACKAGES if options.base_python is None else packages_at(options.base_python)
    if base.equal and options.base_python is None:
        _say(f"UNCHANGED: the working tree is {base.commit[:12]}, the merge base with {name}, but for documentation")
        return ExitStatus.PASSED
    # Every side opens the same device, regardless of its own settings.
    device_name = named_device(options.pytest_arguments, folder) or settings.device
    device = open_device(device_name)
    slug = device.identity.slug
    command = child_command(options.pytest_arguments, folder, device_name)
    tally, work, problem = Tally(), base.commit, ""
    tell = partial(_say, verbose=bool({"-v", "-vv", "--verbose"} & {*options.pytest_arguments}))
    kernels: list[KernelRow] = []
    try:
        with (
            Site(repository, command, slug, settings, interrupts, tell, starts_ahead(device), packages) as site,
            DeviceLock(device.key) as lock,
            interrupts.armed(),
        ):
            work = site.lay_out(base.commit)
            if options.setup:
                _say(f"setting up: {options.setup}")
                site.set_up(options.setup)
            lock.acquire(settings.lock_minutes, _say)
            site.measure(tally, None, math.inf)
            problem = tally.problem
            kernels = _compare_kernels(site, tally, project)
    except KeyboardInterrupt:
        _say("interrupted; the worktrees are removed")
        problem = INTERRUPTED
    head = repository.git("rev-parse", "HEAD")
    comparison = Comparison(
        schema=SCHEMA,
        base=name,
        base_commit=base.commit,
        head_commit=head,
        uncommitted=work not in (head, base.commit),
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        perfguard=__version__,
        hardware=device.identity,
        toolchain=device.toolchain(),
        rows=rows_of(tally),
        kernels=kernels,
        base_toolchain=tally.toolchain,
        measured=tally.measured,
        pairs=tally.pairs,
        problem=problem,
    )
    width = None if sys.stdout.isatty() else 240
    print_comparison(comparison, Console(highlight=False, markup=False, emoji=False, width=width))
    if options.json is not None:
        write_atomically(options.json, dump_comparison(comparison))
    if problem == INTERRUPTED:
        return ExitStatus.INTERRUPTED
    if not comparison.measured:
        _say("no guarded test was measured on both sides; name tests that use the perfguard fixture")
    return exit_status(comparison.words, strict=False, measured=comparison.measured, tests_failed=bool(problem))


def _compare_kernels(site: Site, tally: Tally, project: Path) -> list[KernelRow]:
    """Add to the results of both sides what the compilers make of kernels that are not alike, and list these."""
    base, work = (site.followed.get(side, Followed()) for side in ("base", "work"))
    cases = [case for case in tally.results["work"] if case in tally.results["base"] and work.of(case)]
    if not cases:
        return []
    _say(f"comparing kernels of {counted(len(cases), 'case')} on {', '.join(site.settings.targets)}")
    folder = Config(project, site.settings).cache_dir / "binaries"
    compilers = (
        Compiler(folder, path=base.path, python=site.packages.python),
        Compiler(folder, path=work.path),
    )
    try:
        found = compare_cases([Sides(base.of(case), work.of(case)) for case in cases], compilers)
    finally:
        for compiler in compilers:
            compiler.close()
    rows: dict[KernelRow, None] = {}
    for case, compared in zip(cases, found, strict=True):
        for problem in compared.problems:
            _say(f"{case[1]}: {problem}")
        both: dict[Side, Sequence[Reading]] = {"base": compared.base, "work": compared.work}
        for side, readings in both.items():
            tally.results[side][case] = with_readings(tally.results[side][case], readings)
        rows |= dict.fromkeys(kernel_rows(compared.base, compared.work))
    return list(rows)


def _say(text: str, *, passing: bool = False, detail: bool = False, verbose: bool = False) -> None:
    if verbose or not detail:
        print(f"perfguard compare: {text}", file=sys.stderr, flush=True)


def rows_of(tally: Tally) -> list[Row]:
    """One row for each time, for each exact metric that moved, and for each case that is not compared; worst first."""
    cases = dict.fromkeys([*tally.results["work"], *tally.results["base"]])
    rows = [row for case in cases for row in _case_rows(tally, case)]
    for test, (side, how) in tally.lost.items():
        rows.append(Row("", test, "", Word.BROKEN if side == "work" else Word.UNRESOLVED, how, nodeid=test))
    rows += [_timed_row(tally, track) for track, time in tally.times.items() if not time.unchanged]
    work = tally.results["work"]

    def place(row: Row) -> tuple[int, int, float, str, str]:
        result = work.get((row.suite, row.case))
        rank = 0 if result is None else result.rank(row.metric)
        return URGENCY[row.word], rank, -(row.effect or 0.0), row.suite, row.case

    return sorted(rows, key=place)


def _case_rows(tally: Tally, case: CaseId) -> list[Row]:
    base, work = tally.results["base"].get(case), tally.results["work"].get(case)
    if any(side is not None and side.case.nodeid in tally.lost for side in (base, work)):
        return []
    if base is None or work is None:
        return _lonely(tally, base, work)
    why = why_not_compared(base, work)
    if why is not None:
        word, reason = why
        return [_row(work, "", word, reason)]
    return [
        *exact_rows(base, work, tally.results["copy"].get(case)),
        *(_unchanged(base, work, metric) for metric in sorted(covered_beside(base, work))),
        *(_row(work, verdict.metric, verdict.word, verdict.reason) for verdict in work.verdicts if verdict.metric),
    ]


def _lonely(tally: Tally, base: CaseResult | None, work: CaseResult | None) -> list[Row]:
    if tally.finds:  # the other side may only have been cut short
        return []
    if work is not None:
        return [_row(work, "", *(bad(work) or (Word.NEW, "in the working tree only; nothing to compare it with")))]
    assert base is not None
    return [_row(base, "", Word.STALE, "at the base only: its test is gone, renamed or skipped now")]


def _timed_row(tally: Tally, track: TimeId) -> Row:
    work, base = tally.results["work"][track[:2]], tally.results["base"][track[:2]]
    verdict, time = tally.verdicts.get(track), tally.time(track)
    row = _row(work, track.metric, Word.UNRESOLVED, time.problem, base.reading(track.metric))
    known = paired_readings_of(tally.times[track].work, time)
    if verdict is None or known is None:
        changed = time.problem.startswith("timed by")
        return replace(row, word=Word.METHOD_CHANGED) if changed else row
    about = time.readings, verdict.effect, known.theta
    cycles, states = in_cycles(*about), in_states(*about)
    if verdict.word is None:
        said = [
            f"undecided when the comparison ended: {time.problem or tally.problem or 'interrupted'}",
            str(verdict),
            states,
        ]
    elif verdict.word is Word.UNRESOLVED:
        said = [TOO_NOISY, str(verdict), states, cycles]
    else:  # both sides ran by turns, so the machine is no cause
        passes = verdict.word is Word.PASS
        said = [cycles] if passes else [states, cycles, because(track.metric, work.readings, _exact_values(base))]
    low, high = verdict.interval
    return replace(
        row,
        word=verdict.word or Word.UNRESOLVED,
        reason="; ".join(filter(None, said)),
        before=middle([each.base_us for each in known.readings]),
        after=middle([each.work_us for each in known.readings]),
        effect=math.expm1(verdict.effect),
        interval=(math.expm1(low), math.expm1(high)),
        pairs=verdict.pairs,
        smallest=verdict.smallest,
    )


def exact_rows(base: CaseResult, work: CaseResult, copy: CaseResult | None) -> list[Row]:
    """The exact metrics that moved. A metric that differs between two checkouts of the base is UNRESOLVED."""
    rows = []
    for reading in work.readings:
        before = base.reading(reading.metric)
        if reading.timed or before is None:
            continue
        verdict = judge_exact(reading, before.value)
        if verdict.word is Word.PASS:
            continue
        more = (spelled_out(reading.metric, work.readings, _exact_values(base)), reading.note)
        row = replace(
            _row(work, reading.metric, verdict.word, "; ".join(filter(None, (verdict.reason, *more))), reading),
            before=before.value, after=reading.value, effect=None if verdict.ratio is None else verdict.ratio - 1,
        )  # fmt: skip
        again = copy.reading(reading.metric) if copy else None
        if again is not None and judge_exact(again, before.value).word is not Word.PASS:
            unstable = describe_difference(again, before.value)
            row = replace(row, word=Word.UNRESOLVED, reason=f"differs between two checkouts of the base: {unstable}")
        rows.append(row)
    return rows


def _exact_values(result: CaseResult) -> dict[str, Value]:
    return {reading.metric: reading.value for reading in result.readings if not reading.timed}


def _unchanged(base: CaseResult, work: CaseResult, metric: str) -> Row:
    before, after = base.reading(metric), work.reading(metric)
    row = _row(work, metric, Word.UNCHANGED, "the device runs the very same code", after)
    return replace(row, before=before.value if before else None, after=after.value if after else None)


def _row(result: CaseResult, metric: str, word: Word, reason: str, reading: Reading | None = None) -> Row:
    case = result.case
    row = Row(case.suite, case.key, metric, word, reason, nodeid=case.nodeid)
    return row if reading is None else replace(row, unit=reading.unit, timer=reading.timer or "")
