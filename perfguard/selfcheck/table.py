"""The findings in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from perfguard.selfcheck.findings import SLOWDOWNS, Detector, Findings, describe_rate
from perfguard.selfcheck.rates import Rate
from perfguard.units import format_change, format_percent, format_time

_BARS = "▁▂▃▄▅▆▇█"
_MOST_LEFT_OUT = 10
_WIDTH = 120  # where nobody says how wide the paper is


def curve(rates: Sequence[float]) -> str:
    """Shares as a row of bars, the highest for 1."""
    return "".join(_BARS[min(int(rate * len(_BARS)), len(_BARS) - 1)] for rate in rates)


def show(findings: Findings) -> None:
    """Print everything: noise, false alarms, power beside the rivals', the real kernel, and the promises."""
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
        f"{findings.hardware.name} ({findings.hardware.slug}): {findings.sessions} sessions, {days}; "
        f"{findings.cases} cases, {findings.seconds_per_case:.2f} s a case; baselines of {findings.stored} sessions, "
        f"{findings.confirmations} fresh processes confirm",
    )
    noise = table("\nnoise between processes", "metric", "timer", "cases", "CV", "<= 0.3 %", "<= 0.5 %", "sees 2 %",
                  "sees 3 %", "unresolved", "its limit")  # fmt: skip
    for timer in findings.timers:
        limit = "" if timer.unresolved_limit is None else format_percent(timer.unresolved_limit)
        shares = (timer.cv_within_03, timer.cv_within_05, timer.able_2, timer.able_3, timer.unresolved)
        noise.add_row(
            timer.metric,
            timer.timer,
            str(timer.cases),
            format_percent(timer.cv_median, 2),
            *(format_percent(share, 0) for share in shares),
            limit,
        )
    console.print(noise)

    console.print("\nfalse alarms: unchanged code, every session judged against the others (intervals by session)")
    console.print(f"  decisions           {describe_rate(findings.decisions)}")
    console.print(f"  suites              {describe_rate(findings.suites)}")
    console.print(f"  false FASTER        {describe_rate(findings.improvements)}")
    for alarm in findings.alarms:
        console.print(f"    {alarm}", style="red", markup=False)

    suites = findings.resampled.suites
    count = suites.trials if suites else 0
    console.print(
        f"\nresampled: {count} suites of {findings.resampled_cases} cases, built from whole sessions of those above "
        "(not measured anew);\npower: share of injected slowdowns found, over the cases that can see 3 %"
    )
    detectors = table("", "rule", "false alarms", "suites with any",
                      *(format_percent(slowdown, 0) for slowdown in SLOWDOWNS), "curve")  # fmt: skip
    own = findings.resampled
    detectors.add_row(*_row(own, [power.able for power in own.power]))
    detectors.add_row("  over all cases", "", "", *_curve([power.all for power in own.power]))
    for rival in findings.rivals:
        detectors.add_row(*_row(rival, [power.able for power in rival.power]))
    console.print(detectors)
    for detector in findings.rivals:
        if detector.note:
            console.print(f"  {detector.name}: {detector.note}")

    if findings.injected:
        real = table("\na real kernel made slower", "kernel", "aimed at", "true", "standard error", "can see", "found")
        for one in findings.injected:
            real.add_row(
                format_time(one.length_us),
                format_percent(one.aimed, 0),
                format_change(1 + one.true_slowdown),
                format_percent(one.standard_error, 2),
                "" if one.smallest is None else format_percent(one.smallest),
                f"{one.found.hits} of {one.found.trials}",
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


def _row(detector: Detector, power: Sequence[Rate]) -> list[str]:
    if detector.decisions is None or detector.suites is None:
        return [detector.name, *["-"] * (3 + len(SLOWDOWNS))]
    decisions, suites = format_percent(detector.decisions.value, 3), detector.suites
    return [detector.name, decisions, f"{suites.hits} of {suites.trials}", *_curve(power)]


def _curve(power: Sequence[Rate]) -> list[str]:
    shares = [format_percent(rate.value, 0) if rate.trials else "-" for rate in power]
    return [*shares, curve([rate.value for rate in power])]
