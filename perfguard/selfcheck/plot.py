"""Power against the size of a slowdown, as PNG and SVG; needs matplotlib (the extra `selfcheck`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfguard.selfcheck.findings import Findings

_NAMES = ("selfcheck.png", "selfcheck.svg")
_SIZE = (8.0, 5.0)  # inches


def plot(findings: Findings, folder: Path) -> list[str]:
    """Draw the curves into `folder`; returns lines to print: the files, or that matplotlib is missing."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return ["plot: not drawn, matplotlib is not installed; pip install 'perfguard[selfcheck]' and judge again with "
                f"perfguard selfcheck --from {folder}"]  # fmt: skip
    # Without pyplot, which would need a window system and change the caller's current figure.
    figure = Figure(figsize=_SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    _draw(figure.subplots(), findings)
    figure.legend(loc="outside lower center", ncols=2, fontsize=7)
    told = []
    for name in _NAMES:
        figure.savefig(folder / name, dpi=150)
        told.append(f"plot: {folder / name}")
    return told


def _draw(axes: Any, findings: Findings) -> None:
    points = [(100 * power.slowdown, power.found.value) for power in findings.power if power.found.trials]
    axes.plot(*zip(*points, strict=True), "ko-", markersize=4, linewidth=2.5, label="injected samples")
    real = [one for one in findings.injected if one.aimed > 0 and one.found.trials]
    if real:
        axes.errorbar(
            [100 * one.true_slowdown for one in real], [one.found.value for one in real],
            xerr=[100 * one.standard_error for one in real],
            fmt="ko", markersize=4, alpha=0.6, label="real kernel",
        )  # fmt: skip
    axes.set(xlabel="slowdown (%)", ylabel="share found", xlim=(0, 10.5), ylim=(-0.03, 1.03))
    axes.set_title(
        f"{findings.hardware.name}: {findings.sessions} sessions, {findings.timed_cases} timed cases", fontsize=10
    )
    axes.grid(alpha=0.3)
