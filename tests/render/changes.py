"""Overviews of one pull request with a few, many and very many findings, in the shapes that real lanes report.

python -m tests.render.changes >comment.md      the comment of README.md's picture (scripts/picture.py)
"""

from __future__ import annotations

import msgspec

from perfguard.github.outcome import files_of
from perfguard.model.records import Accuracy, Better, Case, CaseResult, Parts, Reading, Verdict, Word
from perfguard.model.records.code import CODE, CONFIGURATION
from perfguard.model.units import Unit
from perfguard.render.overview import LaneView, Overview
from tests.render.examples import SLOWER, lane, overview, result

#: Kernel -> the file and line of its definition.
PLACES = {
    f"{kernel}_{size}": f"kernels/{kernel}.py:{40 + size}"
    for kernel in ("quantize", "norm", "dispatch")
    for size in range(4)
}
SOURCE = "https://github.com/example/project/blob/4f1c0de58d0a0a4c3a0f5f8f3c8b7f1f6d2f9f10/"


def slow(kernel: str, number: int, *, percent: float = 6.1, held: bool = False) -> CaseResult:
    """A case that is slower since its kernel has other code with spills, or another configuration."""
    name = f"{kernel}[{64 * (number + 1)}x48]"
    change = f"`{kernel}`: held 9 -> 2" if held else "spills 0 -> 12"
    ratio = 1 + percent / 100
    time = msgspec.structs.replace(
        SLOWER, reason=f"in 3 process pairs; because: {change}", after=61.2 * ratio, ratio=ratio,
        interval=(ratio - 0.006, ratio + 0.006),
    )  # fmt: skip
    made = result(name, time, us=61.2 * ratio)
    code: Parts = {kernel: "bb-b1", "zero_words": "aa-a1"}
    spills: Parts = {kernel: 0 if held else 12, "zero_words": 0}
    readings = [
        Reading(CODE, Unit.TEXT, code, Better.SAME, gated=False, stored=True,
                lines={kernel: f"{PLACES[kernel]} in {kernel}"}),
        Reading("sm_90.spills", Unit.COUNT, spills, target="sm_90", rank=10),
        Reading(CONFIGURATION, Unit.TEXT, {f"`{kernel}`: held": "2" if held else "9"}, Better.SAME, gated=False),
    ]  # fmt: skip
    before: dict[str, Parts] = {
        CODE: {kernel: "aa-a1", "zero_words": "aa-a1"},
        CONFIGURATION: {f"`{kernel}`: held": "9"},
    }
    verdicts = [
        Verdict(Word.PASS, each.metric, "not gated: …", before[each.metric], each.value, each.unit)
        for each in readings
        if each.metric in before
    ]
    was: Parts = {kernel: 0, "zero_words": 0}
    if not held:
        why = f"sm_90.spills {kernel} 0 -> 12"
        verdicts.append(Verdict(Word.CHANGED, "sm_90.spills", why, was, spills, Unit.COUNT))
    return msgspec.structs.replace(made, readings=[*made.readings, *readings], verdicts=[*made.verdicts, *verdicts])


def wrong(kernel: str, number: int) -> CaseResult:
    """A case with a wrong result, whose kernels nobody read: its error is above another limit than the RMSE's."""
    name = f"{kernel}[{64 * (number + 1)}x48]"
    problem = "output: 3 of 48 rows too far off: RMSE 0.0162, limit 0.0101, worst at [26, 4]: got -6.84273, want -5.47"
    accuracy = Accuracy("output", "bfloat16", rmse=0.00753, limit=0.00829, problem=problem)
    case = Case("norms", name, "forward", f"tests/test_norms.py::test_{name}")
    return CaseResult(case, accuracy=[accuracy], verdicts=[Verdict(Word.WRONG, "output", problem)])


def changed(findings: int, *lanes: LaneView) -> Overview:
    """A change with so many findings, one of them a wrong result, by one cause for three and by twelve for 400."""
    kernels = [*PLACES][: max(1, min(len(PLACES), findings // 10))]
    cases = [wrong(kernels[0], findings)]
    number = 0
    while sum(sum(verdict.word.fails for verdict in case.verdicts) for case in cases) < findings:
        kernel = kernels[number % len(kernels)]
        cases.append(slow(kernel, number, percent=5 + number % 7, held=number % len(kernels) == 0))
        number += 1
    fine = [result(f"fine[{number}]") for number in range(20)]
    measured = msgspec.structs.replace(
        lane("nvidia-h200", *cases, *fine), job_url="https://github.com/example/project/actions/runs/123456789/job/7"
    )
    whole = overview(measured, *lanes, lane("amd-mi300x", *fine))
    return msgspec.structs.replace(whole, source_url=SOURCE)


if __name__ == "__main__":
    print(files_of(changed(40), strict=False)["comment.md"].decode())
