"""Prints the findings in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.selfcheck.findings import SLOWDOWNS, Findings, Power
from perfguard.model.units import counted, format_percent

_MOST_LINES = 20  # of false alarms, or of what was left out
_WIDTH = 120  # if stdout is not a terminal
_WORDS = {True: ("kept", "green"), False: ("BROKEN", "red"), None: ("not shown", "yellow")}


def show(findings: Findings) -> None:
    """Print everything: false alarms, power, the promises."""
    from rich.console import Console
    from rich.table import Table

    width = None if sys.stdout.isatty() else _WIDTH
    console = Console(width=width, soft_wrap=width is not None, highlight=False, markup=False)
    days = f"{findings.first_session[:10]} to {findings.last_session[:10]}"
    console.print(
        f"{findings.hardware.name} ({findings.hardware.slug}): {findings.sessions} sessions, {days}; {findings.cases} "
        f"cases, {findings.timed_cases} of them timed, {findings.seconds_per_case:.2f} s a case"
    )
    suites = findings.suites
    console.print(f"\nunchanged: {counted(suites.slower.trials, 'suite')} of {counted(suites.cases, 'case')}")
    console.print(f"  exact metrics moved {findings.exact}")
    console.print(f"  suites with SLOWER  {suites.slower}")
    console.print(f"  suites with FASTER  {suites.faster}")
    console.print(f"  times undecided     {suites.undecided}; {suites.pairs_per_case:.1f} pairs a case")
    for line in _shortened(findings.alarms):
        console.print(f"    {line}", style="red")

    power = Table(title="\nslower by so much, and found", title_justify="left", box=None, pad_edge=False)
    power.add_column("metric", no_wrap=True)
    for column in ("timer", "cases", "variation", *(format_percent(slowdown, 0) for slowdown in SLOWDOWNS)):
        power.add_column(column, justify="right", no_wrap=True)
    for each in findings.timers:
        variation = format_percent(each.variation, 2)
        power.add_row(each.metric, each.timer, str(each.cases), variation, *_shares(each.power))
    power.add_row("all", "", str(findings.timed_cases), "", *_shares(findings.power))
    console.print(power)

    if findings.left_out:
        console.print(f"\nleft out: {counted(len(findings.left_out), 'case or reading')}", style="yellow")
        for line in _shortened(findings.left_out):
            console.print(f"  {line}")
    console.print("\npromises")
    for promise in findings.promises():
        word, style = _WORDS[promise.kept]
        console.print(f"  {word:9}  {promise.text}: {promise.seen}", style=style)


def _shares(power: Sequence[Power]) -> list[str]:
    return [format_percent(each.found.value, 0) if each.found.trials else "-" for each in power]


def _shortened(lines: Sequence[str]) -> list[str]:
    more = len(lines) - _MOST_LINES
    return [*lines[:_MOST_LINES], f"and {more} more"] if more > 0 else list(lines)
