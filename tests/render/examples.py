"""Overviews of every kind, in the shapes that real lanes have: what the golden comments and pages are made of."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perfguard.model.records import (
    SCHEMA,
    TOO_NOISY,
    Accuracy,
    Baseline,
    BaseTree,
    Better,
    Case,
    CaseBaseline,
    CaseResult,
    Conditions,
    Hardware,
    Provenance,
    Reading,
    Report,
    Throughput,
    TimedEntry,
    Toolchain,
    Verdict,
    Word,
)
from perfguard.model.records.code import CODE
from perfguard.model.units import Unit
from perfguard.render.findings import BaselineEdit
from perfguard.render.overview import Headline, LaneView, Overview, Refused

US = Unit.MICROSECONDS
DEVICES = {
    "nvidia-h200": Hardware(
        slug="nvidia-h200", vendor="nvidia", name="NVIDIA H200", architecture="sm_90", power_limit_watts=700.0
    ),
    "amd-mi300x": Hardware(slug="amd-mi300x", vendor="amd", name="AMD Instinct MI300X", architecture="gfx942"),
}
TOOLS = {
    "nvidia-h200": Toolchain(torch="2.11.0", triton="3.6.0", driver="580.159.04", toolkit="CUDA 13.0", python="3.12"),
    "amd-mi300x": Toolchain(torch="2.11.0", triton="3.6.0", driver="6.14.14", toolkit="ROCm 7.1", python="3.12"),
}
PASSED = Verdict(
    Word.PASS, "device_time_us", before=61.2, after=61.3, unit=US, ratio=61.3 / 61.2, limit=0.01, smallest=0.018
)
SLOWER = Verdict(
    Word.SLOWER, "device_time_us",
    "in 3 process pairs; because: launches 1 -> 2 (+100.0 %)",
    before=61.2, after=64.93, unit=US, ratio=1.061, interval=(1.055, 1.067), limit=0.01, smallest=0.018,
)  # fmt: skip
LAUNCHES = Verdict(
    Word.CHANGED, "launches", "launches 1 -> 2 (+100.0 %)", before=1, after=2, unit=Unit.COUNT, ratio=2.0, limit=0.0
)
CONTRACT = Verdict(
    Word.CHANGED, "contract", "contract bfloat16[64] -> float32[64]", before="bfloat16[64]", after="float32[64]"
)
FASTER = Verdict(
    Word.FASTER, "device_time_us", "in 3 process pairs",
    before=61.2, after=56.3, unit=US, ratio=0.92, interval=(0.914, 0.926), limit=0.01, smallest=0.018,
)  # fmt: skip
WRONG = Verdict(
    Word.WRONG, "output", "output: RMSE 0.502, limit 0.003, worst at [26, 4]: got -6.84273, want -5.47418; SQNR 12.0 dB"
)
BROKEN = Verdict(Word.BROKEN, reason="RuntimeError in device_time_us: out of memory, 2 GiB asked for, 1 GiB free")
NOISY = Verdict(
    Word.UNRESOLVED, "device_time_us",
    f"{TOO_NOISY}; in 12 process pairs",
    before=61.2, after=62.5, unit=US, ratio=1.021, interval=(0.996, 1.046), limit=0.01, smallest=0.042,
)  # fmt: skip
UNPAIRED = Verdict(
    Word.UNRESOLVED, "device_time_us", "UNPAIRED: this clone is shallow: git fetch --unshallow",
    before=61.2, after=62.5, unit=US, ratio=1.021,
)  # fmt: skip
BETTER = Verdict(
    Word.BETTER, "copies", "copies 2 -> 1 (-50.0 %)", before=2, after=1, unit=Unit.COUNT, ratio=0.5, limit=0.0
)  # fmt: skip
OLD_FAULT = Verdict(Word.OLD_FAULT, "output", "so it is at 9ab77e2c1d5b: hard input, x (zero): got nan, want 0")
DOUBTED = Verdict(
    Word.WRONG, "output",
    "hard input, x (reversed): RMSE 0.502, limit 0.003; made again by perfguard.derived(x, \"reversed\")\n"
    "right at 9ab77e2c1d5b",
)  # fmt: skip
NEW = Verdict(Word.NEW, "device_time_us", "no baseline on amd-mi300x", after=88.1, unit=US)
DRIFT = Verdict(
    Word.DRIFT, "device_time_us", "+1.2 %; another toolchain: torch 2.11.0, was 2.10.0",
    before=61.2, after=61.9, unit=US, ratio=1.012, limit=0.01,
)  # fmt: skip


def result(name: str, *verdicts: Verdict, us: float | None = 61.3) -> CaseResult:
    """A case with these verdicts; `us` is its device time, None for a case that was not timed."""
    readings = [Reading("contract", Unit.TEXT, "bfloat16[64]", Better.SAME, portable=True)]
    if us is not None:
        blocks = [us * factor for factor in (0.999, 1.0, 1.002)]
        readings.append(Reading("device_time_us", US, us, timer="graph-cold", blocks=blocks))
    wrong = [verdict.reason for verdict in verdicts if verdict.word is Word.WRONG and verdict is not DOUBTED]
    accuracy = Accuracy("output", "bfloat16", sqnr_db=12.0 if wrong else 55.6, rmse=0.502 if wrong else 0.0011,
                        limit=0.003, problem="".join(wrong))  # fmt: skip
    return CaseResult(
        case=Case("norms", name, "forward", f"tests/test_norms.py::test_{name}"),
        inputs="bfloat16[64]",
        accuracy=[accuracy],
        readings=readings,
        verdicts=list(verdicts) or [PASSED],
        throughput=None if us is None else Throughput(4.0e12, None, 0.946),
        seconds=1.5,
    )


def other_code(name: str, kernel: str) -> CaseResult:
    """A case with a kernel that is not the recorded one."""
    then, now = {kernel: "aa-a1", "same": "cc-c1"}, {kernel: "bb-b1", "same": "cc-c2"}
    verdict = Verdict(Word.PASS, CODE, "not gated: …", before=then, after=now)
    made = result(name, verdict, us=None)
    reading = Reading(CODE, Unit.TEXT, now, Better.SAME, gated=False, stored=True)
    return msgspec.structs.replace(made, readings=[*made.readings, reading])


def lane(slug: str, *results: CaseResult, **changes: object) -> LaneView:
    """A lane that ran whole, with five stored sessions for each of its cases."""
    tools = TOOLS[slug]
    report = Report(
        schema=SCHEMA,
        hardware=DEVICES[slug],
        toolchain=tools,
        started="2026-11-21T08:30:00+00:00",
        commit="4f1c0de",
        perfguard="0.1.0",
        results=list(results),
        copy_bytes_per_second=4.23e12,
        conditions=[Conditions(clock_mhz=345), Conditions(clock_mhz=1980)],
        complete=True,
        base=BaseTree(commit="9ab77e2c1d5b3b6f7a9e8d7c6b5a4f3e2d1c0b9a"),
        guarded=len(results),
        remembered=len(results),
    )
    stored = CaseBaseline({"device_time_us": TimedEntry([61.1, 61.2, 61.4, 61.2, 61.3], "graph-cold")}, "bfloat16[64]")
    provenance = Provenance(torch=tools.torch, triton=tools.triton, driver=tools.driver, toolkit=tools.toolkit,
                            commit="9ab77e2", recorded="2026-11-16")  # fmt: skip
    cases = {each.case.key: stored for each in results if Word.NEW not in {v.word for v in each.verdicts}}
    view = LaneView(slug, report, baselines={"norms": Baseline(slug, "norms", {"": provenance}, cases)})
    return msgspec.structs.replace(view, **changes)


def overview(*lanes: LaneView, edits: Sequence[BaselineEdit] = ()) -> Overview:
    """As `perfguard comment` makes it."""
    return Overview(
        lanes=list(lanes),
        edits=list(edits),
        head="4f1c0de58d0a0a4c3a0f5f8f3c8b7f1f6d2f9f10",
        base="9ab77e2c1d5b3b6f7a9e8d7c6b5a4f3e2d1c0b9a",
        run_url="https://github.com/example/project/actions/runs/123456789",
    )


EDIT = BaselineEdit(
    "nvidia-h200", "norms", "rms_norm[64]/forward", "device_time_us", US, 61.2, 65.0, "one more launch, #412",
    loosens="worst session 65.3 µs, was 61.4 µs", measured=64.9,
)  # fmt: skip
FINE = lane("amd-mi300x", result("rms_norm[64]"), result("layer_norm[64]"))
SLOW = lane("nvidia-h200", result("rms_norm[64]", SLOWER, LAUNCHES, us=64.93), result("layer_norm[64]"))

#: One for each headline.
EXAMPLES: dict[Headline, Overview] = {
    Headline.WRONG: overview(
        lane("nvidia-h200", result("rms_norm[64]", WRONG, us=None), result("gelu", DOUBTED), result("softmax", SLOWER)),
        FINE,
    ),
    Headline.WORSE: overview(SLOW, lane("amd-mi300x", result("rms_norm[64]", CONTRACT), result("softmax", FASTER))),
    Headline.INCOMPLETE: overview(
        LaneView("nvidia-h200", problem="the run was cancelled before a report was uploaded"),
        lane(
            "amd-mi300x",
            result("softmax", BROKEN, us=None),
            refused=[Refused("gelu[64]/forward", "0 is no time")],
            unmeasured=["silu[64]/forward"],
        ),
    ),
    Headline.INCONCLUSIVE: overview(
        lane("nvidia-h200", result("rms_norm[64]", UNPAIRED), result("softmax", UNPAIRED), result("gelu")), FINE
    ),
    Headline.UNDECIDED: overview(lane("nvidia-h200", result("rms_norm[64]", NOISY, us=62.5), result("gelu")), FINE),
    Headline.UNVERIFIED: overview(
        lane("nvidia-h200", result("rms_norm[64]", DRIFT, us=61.9), result("softmax", UNPAIRED), result("gelu")),
        lane("amd-mi300x", result("rms_norm[64]", NEW)),
    ),
    Headline.NO_BASELINE: overview(
        lane("nvidia-h200", result("rms_norm[64]")), lane("amd-mi300x", result("rms_norm[64]", NEW))
    ),
    Headline.ACCEPTED: overview(
        msgspec.structs.replace(
            SLOW, accepted=[("norms", "rms_norm[64]/forward", name) for name in ("device_time_us", "launches")]
        ),
        FINE,
        edits=[
            EDIT,
            msgspec.structs.replace(
                EDIT, metric="launches", unit=Unit.COUNT, before=1, after=1, loosens="", measured=2
            ),
        ],
    ),
    Headline.FASTER: overview(lane("nvidia-h200", result("rms_norm[64]", FASTER, OLD_FAULT, us=56.3)), FINE),
    Headline.UNCHANGED: overview(
        lane(
            "nvidia-h200",
            result("rms_norm[64]", PASSED, BETTER),
            result("softmax", PASSED, OLD_FAULT),
            result(
                "gelu",
                PASSED,
                msgspec.structs.replace(NEW, metric="sorts"),
                msgspec.structs.replace(NEW, metric="waits"),
            ),
        ),
        FINE,
    ),
}
