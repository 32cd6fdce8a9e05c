"""Many lanes with many regressions, made fast."""

from __future__ import annotations

import json
from collections.abc import Iterator

from msgspec.structs import replace

from perfguard.model.records import Baseline, CaseBaseline, dump_report
from perfguard.store.baseline_writer import render
from tests.github.reports import PROVENANCE, SUITE, archive, compared, entries, key, measured


def archives(lanes: int, cases: int) -> Iterator[tuple[str, bytes]]:
    """Lane -> its archive; every case launches twice as often, and is slower in every process pair."""
    times = {f"case_{number:04}": 60.0 for number in range(cases)}
    made = compared(times)
    results = [measured(name, us, launches=2) for name, us in times.items()]
    whole = json.loads(dump_report(replace(made, results=results)))
    for number in range(lanes):
        slug = f"gpu-{number}"
        hardware = whole["hardware"] | {"slug": slug}
        yield slug, archive(json.dumps(whole | {"hardware": hardware}).encode(), f"report-{slug}.json")


def baselines(lanes: int, cases: int) -> dict[str, bytes]:
    """Path -> file: what each lane was before."""
    held = {key(f"case_{number:04}"): CaseBaseline(entries(), "float32[64]") for number in range(cases)}
    return {
        f"baselines/gpu-{number}/{SUITE}.yaml": render(Baseline(f"gpu-{number}", SUITE, PROVENANCE, held)).encode()
        for number in range(lanes)
    }
