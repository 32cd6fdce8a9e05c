"""The recipes of docs/ci.md for other CI services, run as written, with stubs of the services' own commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from perfguard.model.errors import ExitStatus
from perfguard.model.records import BaseTree, Report, dump_report
from tests.github.conftest import BASE
from tests.github.reports import SLUG, baseline_file, compared

ROOT = Path(__file__).parents[2]
#: A stub writes its arguments, one line for each call, and its standard input if that is not a terminal.
STUB = """#!/bin/bash
printf '%s\\n' "$(basename "$0") $*" >>"$CALLS"
if [ "$1" = annotate ]; then cat >"$CALLS.stdin"; fi
"""
PERFGUARD = '#!/bin/bash\nexec "{python}" -m perfguard "$@"\n'


def recipe(service: str) -> str:
    """The first code block below the heading of a service."""
    text = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    return text.partition(f"### {service}\n")[2].partition("```")[2].partition("\n")[2].partition("```")[0]


class Checkout:
    """A clone at the head of a change, whose lane has left its report."""

    def __init__(self, folder: Path, slower: bool) -> None:
        self.folder, self.calls = folder / "clone", folder / "calls"
        self.folder.mkdir()
        stubs = folder / "bin"
        stubs.mkdir()
        stubbed = {"buildkite-agent": STUB, "curl": STUB, "perfguard": PERFGUARD.format(python=sys.executable)}
        for name, text in stubbed.items():
            (stubs / name).write_text(text)
            (stubs / name).chmod(0o755)
        self.environ = {
            "PATH": f"{stubs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(folder),
            "CALLS": str(self.calls),
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        (self.folder / "baselines" / SLUG).mkdir(parents=True)
        (self.folder / "baselines" / SLUG / "area.yaml").write_bytes(baseline_file(BASE))
        (self.folder / "pyproject.toml").write_text(f"[tool.perfguard]\nlanes = ['{SLUG}']\n")
        self.git("init", "--quiet", "--initial-branch=main")
        self.commit("base")
        self.base = self.git("rev-parse", "HEAD")
        self.git("update-ref", "refs/remotes/origin/main", "HEAD")
        (self.folder / "kernel.py").write_text("")
        self.commit("head")
        (self.folder / "reports").mkdir()
        (self.folder / "reports" / f"report-{SLUG}.json").write_bytes(dump_report(self._report(slower)))

    def _report(self, slower: bool) -> Report:
        made = compared({"f": 55.0 if slower else 50.0, "g": 50.0}, commit=self.git("rev-parse", "HEAD")[:12])
        (pairing,) = made.pairings
        return replace(made, base=BaseTree(self.base), pairings=[replace(pairing, base=self.base)])

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        done = subprocess.run(
            ["git", *identity, *arguments],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def commit(self, message: str) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", f"--message={message}")

    def run(self, script: str, **environ: str) -> tuple[int, list[str]]:
        """The status of a script, and the calls of the stubs."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script], cwd=self.folder, env={**self.environ, **environ},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        calls = self.calls.read_text().splitlines() if self.calls.exists() else []
        assert "error" not in done.stderr.lower(), done.stderr
        return done.returncode, calls


@pytest.mark.parametrize("slower", [True, False])
def test_buildkite(tmp_path: Path, slower: bool) -> None:
    checkout = Checkout(tmp_path, slower)
    status, calls = checkout.run(
        recipe("Buildkite"), BUILDKITE_PULL_REQUEST_BASE_BRANCH="main", BUILDKITE_REPO="git@github.com:o/r.git"
    )
    assert status == (ExitStatus.REGRESSED if slower else ExitStatus.PASSED)
    style = "error" if slower else "success"
    assert calls == [
        "buildkite-agent artifact download reports/*.json .",
        f"buildkite-agent annotate --context perfguard --style {style}",
        "buildkite-agent artifact upload perfguard/*",
    ]
    annotated = Path(f"{checkout.calls}.stdin").read_text()
    assert annotated == (checkout.folder / "perfguard" / "comment.md").read_text()
    assert ("1 case slower — action needed" in annotated) is slower
    assert f"{checkout.base[:12]}</code>, the merge base" in annotated


@pytest.mark.parametrize("slower", [True, False])
def test_gitlab(tmp_path: Path, slower: bool) -> None:
    checkout = Checkout(tmp_path, slower)
    job = yaml.safe_load(recipe("GitLab"))["perfguard"]
    variables = {
        "CI_MERGE_REQUEST_DIFF_BASE_SHA": checkout.base, "CI_API_V4_URL": "https://gitlab.example/api/v4",
        "CI_PROJECT_ID": "5", "CI_MERGE_REQUEST_IID": "7", "PERFGUARD_TOKEN": "secret",
        "CI_PROJECT_URL": "https://gitlab.example/o/r",
    }  # fmt: skip
    status, calls = checkout.run("\n".join(job["script"]), **variables)
    assert status == (ExitStatus.REGRESSED if slower else ExitStatus.PASSED)
    url = "https://gitlab.example/api/v4/projects/5/merge_requests/7/notes"
    note = (
        "curl --fail --silent --show-error --header PRIVATE-TOKEN: secret "
        f"--data-urlencode body@perfguard/comment.md {url}"
    )
    assert calls == [note] * slower
    entries = json.loads((checkout.folder / job["artifacts"]["reports"]["codequality"]).read_text())
    assert len(entries) == slower
    for entry in entries:  # The fields that GitLab requires.
        assert {"description", "check_name", "fingerprint", "severity"} < set(entry)
        assert entry["location"]["lines"]["begin"] >= 1
        assert not entry["location"]["path"].startswith(("/", "./"))
        assert entry["severity"] in ("info", "minor", "major", "critical", "blocker")
