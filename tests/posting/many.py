"""Many lanes with many regressions, made fast."""

from __future__ import annotations

import json
from collections.abc import Iterator

from msgspec.structs import replace

from perfguard.baselines.writing import render
from perfguard.records import Baseline, CaseBaseline, dump_report
from tests.lanes.reports import HARDWARE, PROVENANCE, SUITE, archive, entries, key, measured, report


def archives(lanes: int, cases: int) -> Iterator[tuple[str, bytes]]:
    """Lane -> its archive; every case launches twice as often. Untimed: a time that moved in all of them would be
    blamed on the machine, and judging it takes a while."""
    results = [measured("case_0000", us=0, launches=2)]
    one = json.loads(dump_report(report(results, {"case_0000": [50.0] * 3})))
    text = json.dumps([one["results"][0], *(session["results"][0] for session in one["fresh"])])
    numbered = [json.loads(text.replace("case_0000", f"case_{number:04}")) for number in range(cases)]
    whole = one | {
        "results": [case[0] for case in numbered],
        "fresh": [{"results": [case[place] for case in numbered]} for place in (1, 2, 3)],
    }
    for number in range(lanes):
        slug = f"gpu-{number}"
        hardware = json.loads(dump_report(report([], hardware=replace(HARDWARE, slug=slug))))["hardware"]
        yield slug, archive(json.dumps(whole | {"hardware": hardware}).encode(), f"report-{slug}.json")


def baselines(lanes: int, cases: int) -> dict[str, bytes]:
    """Path -> file: what each lane was before."""
    held = {key(f"case_{number:04}"): CaseBaseline(entries(us=0), "float32[64]") for number in range(cases)}
    return {
        f"baselines/gpu-{number}/{SUITE}.yaml": render(Baseline(f"gpu-{number}", SUITE, PROVENANCE, held)).encode()
        for number in range(lanes)
    }
