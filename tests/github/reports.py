"""Reports of a simulated lane, archives of them, and baseline files: what tests of the trusted side are made of."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from perfguard.github.lanes.baselines_at_commit import BaselineSet, read_files
from perfguard.model.records import (
    SCHEMA,
    Baseline,
    BaseTree,
    Better,
    Case,
    CaseBaseline,
    CaseResult,
    Entry,
    Hardware,
    PairedCase,
    PairedTime,
    Pairing,
    PairReading,
    Provenance,
    Reading,
    Report,
    Session,
    TimedEntry,
    Toolchain,
    dump_report,
)
from perfguard.model.units import Unit
from perfguard.store.baseline_form import parse, render
from tests.github.fake import sha

SLUG, SUITE, TIMER = "nvidia-h200", "area", "graph-cold"
HARDWARE = Hardware(slug=SLUG, vendor="nvidia", name="NVIDIA H200", architecture="sm_90", power_limit_watts=700.0)
TOOLCHAIN = Toolchain(torch="2.11.0", triton="3.6.0", driver="580.1", toolkit="CUDA 13.0", python="3.12")
PROVENANCE = Provenance(
    torch="2.11.0", triton="3.6.0", driver="580.1", toolkit="CUDA 13.0", python="3.12", power_limit_watts=700.0
)
SESSIONS = [49.95, 50.05, 50.0, 50.02, 49.98]
PATH = f"baselines/{SLUG}/{SUITE}.yaml"
CODE = "0123456789abcdef"  # a fingerprint


def key(name: str) -> str:
    return f"{name}/forward"


def measured(name: str, us: float = 50.0, launches: int = 1, code: str | None = None, **fields: object) -> CaseResult:
    """A case as its readings; `us` 0 leaves the time unread."""
    readings = [Reading("launches", Unit.COUNT, launches, drifts=True)]
    if code is not None:
        covers = ["device_time_us"]
        readings.append(Reading("fingerprint", Unit.TEXT, code, Better.SAME, gated=False, covers=covers, drifts=True))
    if us:
        blocks = [0.999 * us, us, 1.001 * us]
        time = Reading("device_time_us", Unit.MICROSECONDS, us, timer=TIMER, blocks=blocks, floor=0.05, drifts=True)
        readings.append(time)
    case = Case(SUITE, name, "forward", f"tests/test_area.py::test_{name}")
    return replace(CaseResult(case, "float32[64]", readings=readings), **fields)


def report(
    results: Sequence[CaseResult], fresh: Mapping[str, Sequence[float]] | None = None, **fields: object
) -> Report:
    """`fresh`: case name -> its time in each fresh process."""
    count = max((len(times) for times in (fresh or {}).values()), default=0)
    sessions = [
        Session([measured(name, times[number]) for name, times in (fresh or {}).items() if number < len(times)])
        for number in range(count)
    ]
    made = Report(
        SCHEMA, HARDWARE, TOOLCHAIN, "2026-11-21T10:00:00+00:00", commit=sha("head")[:12], results=list(results),
        fresh=sessions, complete=True,
    )  # fmt: skip
    return replace(made, **fields)


def paired(times: Mapping[str, float], pairs: int = 4, **fields: object) -> Pairing:
    """Process pairs of cases of 50 µs; `times`: case name -> µs of the working tree."""
    cases = []
    for place, (name, us) in enumerate(times.items()):
        scatter = [1e-3 * ((3 * pair + place) % 5 - 2) for pair in range(pairs)]
        readings = [
            PairReading(pair, math.log(us / 50) + off, -off / 2, 50.0, us * math.exp(off))
            for pair, off in enumerate(scatter, 1)
        ]
        cases.append(PairedCase(SUITE, key(name), measured(name, 0), [PairedTime("device_time_us", TIMER, readings)]))
    return replace(Pairing(sha("fork-point"), cases, pairs), **fields)


def compared(times: Mapping[str, float], **fields: object) -> Report:
    """What a run says that has paired every case (name -> µs, 50 at the base) with the merge base."""
    base = BaseTree(sha("fork-point"))
    return report([measured(name, us) for name, us in times.items()], base=base, pairings=[paired(times)], **fields)


def archive(data: bytes | Report, name: str = f"report-{SLUG}.json") -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr(name, dump_report(data) if isinstance(data, Report) else data)
    return packed.getvalue()


def entries(us: float = 50.0, launches: int = 1, code: str | None = None) -> dict[str, Entry]:
    """What is remembered of a case; `us` 0 remembers no time."""
    found: dict[str, Entry] = {"launches": launches}
    if us:
        found["device_time_us"] = TimedEntry([round(value * us / 50, 4) for value in SESSIONS], TIMER)
    return found | ({"fingerprint": code} if code is not None else {})


def baseline_file(cases: Mapping[str, dict[str, Entry]], reasons: Mapping[str, str] | None = None) -> bytes:
    """The YAML of `cases` (names without a pass)."""
    held = {
        key(name): CaseBaseline(found, "float32[64]", name if name in (reasons or {}) else "")
        for name, found in cases.items()
    }
    recordings = {name: replace(PROVENANCE, reason=why) for name, why in (reasons or {}).items()}
    data = render(Baseline(SLUG, SUITE, {"": PROVENANCE, **recordings}, held)).encode()
    parse(data, Path(PATH), SLUG, SUITE)
    return data


def remembered(cases: Mapping[str, dict[str, Entry]], reasons: Mapping[str, str] | None = None) -> BaselineSet:
    return read_files({PATH: baseline_file(cases, reasons)}, "baselines")
