"""Prints the findings in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfguard.model.units import counted, format_change, format_percent, format_time
from perfguard.selfcheck.findings import Findings, Runs, describe_rate
from perfguard.selfcheck.rates import Rate

if TYPE_CHECKING:
    from rich.console import Console

_BARS = "▁▂▃▄▅▆▇█"
_MOST_LEFT_OUT = 10
_WIDTH = 120  # if stdout is not a terminal


def curve(rates: Sequence[float]) -> str:
    """Shares as a row of bars; the highest bar is 1."""
    return "".join(_BARS[min(int(rate * len(_BARS)), len(_BARS) - 1)] for rate in rates)


def show(findings: Findings) -> None:
    """Print everything: noise, false alarms, power, records, the real kernel, the promises."""
    from rich.console import Console
    from rich.table import Table

    width = None if sys.stdout.isatty() else _WIDTH
    console = Console(width=width, soft_wrap=width is not None, highlight=False)

    def table(title: str, *columns: str) -> Table:
        made = Table(*columns, title=title, title_justify="left", box=None, pad_edge=False)
        for column in made.columns:
            column.justify = "left" if column is made.columns[0] else "right"
            column.no_wrap = True
        return made

    days = f"{findings.first_session[:10]} to {findings.last_session[:10]}"
    console.print(
        f"{findings.hardware.name} ({findings.hardware.slug}): {findings.sessions} sessions, {days}; {findings.cases} "
        f"cases, {findings.timed_cases} of them timed, {findings.seconds_per_case:.2f} s a case",
    )
    noise = table("\nnoise between processes", "metric", "timer", "cases", "CV", "<= 0.3 %", "<= 0.5 %", "sees 2 %",
                  "sees 3 %", "sees")  # fmt: skip
    for timer in findings.timers:
        noise.add_row(
            timer.metric,
            timer.timer,
            str(timer.cases),
            format_percent(timer.cv_median, 2),
            *(
                format_percent(share, 0)
                for share in (timer.cv_within_03, timer.cv_within_05, timer.able_2, timer.able_3)
            ),
            format_percent(timer.smallest),
        )
    console.print(noise)

    apart = findings.apart
    console.print(
        "\nunchanged: sessions beside each other. A run has "
        f"{counted(apart.most_pairs, 'process pair')} at most, and no session in two parts;\n"
        "runs share sessions, and their intervals say so"
    )
    console.print(f"  exact metrics moved {describe_rate(findings.exact)}")
    _show_runs(console, apart)
    for alarm in findings.alarms:
        console.print(f"    {alarm}", style="red", markup=False)

    runs = findings.resampled
    console.print(
        f"\nresampled: {counted(runs.slower_suites.trials, 'suite')} of {counted(findings.resampled_cases, 'case')}, "
        f"{counted(runs.most_pairs, 'process pair')} at most, built from whole sessions of those above\n"
        "(not measured anew); power: share of injected slowdowns found, over all timed cases"
    )
    _show_runs(console, runs)
    sizes = [format_percent(power.slowdown, 0) for power in findings.power]
    found = [power.found for power in findings.power]
    power = table("", "slower by", *sizes, "curve")
    power.add_row("found", *map(_share, found), curve([rate.value for rate in found]))
    console.print(power)

    title = f"\nscreen: what a record of {findings.stored} sessions acquits before any pair"
    record = table(title, "a changed case that is", "acquitted", "if not, most often")
    record.columns[2].justify = "left"
    for one in findings.screen:
        reason = next(iter(one.refusals), "")
        slower = f"{format_percent(one.slowdown, 0)} slower" if one.slowdown else "unchanged"
        record.add_row(slower, _share(one.acquitted), reason)
    console.print(record)

    if findings.injected:
        real = table("\na real kernel made slower", "kernel", "aimed at", "true", "standard error", "sees", "found",
                     "pairs")  # fmt: skip
        for each in findings.injected:
            real.add_row(
                format_time(each.length_us),
                format_percent(each.aimed, 0),
                format_change(1 + each.true_slowdown),
                format_percent(each.standard_error, 2),
                format_percent(each.smallest),
                f"{each.found.hits} of {each.found.trials}",
                f"{each.pairs:.1f}",
            )
        console.print(real)
    else:
        console.print(f"\na real kernel made slower: {findings.injection_note}", style="yellow", markup=False)

    if findings.left_out:
        console.print(f"\nleft out: {len(findings.left_out)} cases or readings", style="yellow")
        for line in findings.left_out[:_MOST_LEFT_OUT]:
            console.print(f"  {line}", markup=False)
    console.print("\npromises")
    for promise in findings.promises():
        word, style = {True: ("kept", "green"), False: ("BROKEN", "red"), None: ("not shown", "yellow")}[promise.kept]
        console.print(f"  {word:9}  {promise.text}: {promise.seen}", style=style, markup=False)


def _show_runs(console: Console, runs: Runs) -> None:
    console.print(f"  times SLOWER        {describe_rate(runs.slower)}")
    console.print(f"  suites with any     {describe_rate(runs.slower_suites)}")
    console.print(f"  suites with FASTER  {describe_rate(runs.faster_suites)}")
    console.print(f"  times undecided     {describe_rate(runs.undecided)}; {runs.pairs_per_case:.1f} pairs a case")


def _share(rate: Rate) -> str:
    return format_percent(rate.value, 0) if rate.trials else "-"
