"""The post job is light: no torch, nothing heavy before it is needed, and 5,000 regressions in bounded memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCKED = "import sys; sys.modules['torch'] = sys.modules['triton'] = None\n"


@pytest.mark.parametrize("command", ["comment", "accept", "report"])
def test_a_command_starts_without_torch_and_loads_little(command: str) -> None:
    code = f"{BLOCKED}from perfguard.cli import main\ntry:\n    main([{command!r}, '--help'])\nfinally:\n"
    code += "    print('LOADED', *(name for name in sys.modules if '.' not in name))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.rpartition("LOADED")[2].split())
    assert not loaded & {"numpy", "scipy", "rich", "requests", "pytest", "_pytest"}


def test_the_whole_job_needs_no_torch_and_not_the_measuring_side() -> None:
    modules = ["perfguard.github.comment_job", "perfguard.github.accept"]
    code = f"{BLOCKED}import {', '.join(modules)}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert not {
        name
        for name in loaded
        if name.startswith(("perfguard.measure.devices", "perfguard.measure.timers", "perfguard.session.run"))
    }
    assert not loaded & {"numpy", "scipy", "requests"}


def test_the_limits_of_all_metrics_are_gathered_without_torch_and_numbers() -> None:
    code = (
        f"{BLOCKED}from perfguard.github.lanes.limits import declared\nassert declared('launches')\nprint(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert not set(done.stdout.split()) & {"numpy", "scipy", "requests"}


LARGE = """
import resource
from perfguard.github.api.artifacts import LaneArtifact
from perfguard.github.lanes.lane_views import Trusted, view
from perfguard.github.lanes.baselines_at_commit import read_files
from perfguard.model.lane_summary import Headline, Overview
from perfguard.render.markdown import render_markdown
from perfguard.render.survey import survey
from perfguard.model.records import Word
from tests.github.many import archives, baselines
from tests.github.fake import sha

artifacts = [LaneArtifact(lane, data) for lane, data in archives(4, 1250)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
overview = Overview(view(artifacts, sha("head"), Trusted(read_files(baselines(4, 1250), "baselines"))).lanes)
assert all(lane.report for lane in overview.lanes), [lane.problem for lane in overview.lanes]
texts = render_markdown(overview)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert overview.headline is Headline.WORSE
print(survey(overview).total(Word.SLOWER), max(len(text.encode()) for text in texts), (after - before) // 1024)
"""


def test_row_16_five_thousand_regressions_in_four_lanes() -> None:
    done = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    slower, size, mebibytes = map(int, done.stdout.split())
    assert slower == 5000
    assert size <= 60_000
    assert mebibytes < 300
