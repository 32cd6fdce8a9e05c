"""What the workflows promise: who may write, what runs with a token, pinned actions and packages, one list of lanes."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfguard.github.init.workflows import (
    HOSTED,
    Installed,
    Source,
    guard_workflow,
    lane_workflows,
    measure_workflow,
)
from perfguard.model.config import Config
from perfguard.model.records import Verdict, Word, dump_report
from perfguard.model.suite_names import suite_of
from tests.github.reports import measured, report

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".github" / "workflows"
FILES = sorted(FOLDER.glob("*.yml"))
ACTIONS = {"actions/checkout", "actions/setup-python", "actions/upload-artifact"}
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    loaded["on"] = loaded.pop(True)  # YAML 1.1 takes `on` for a truth value
    return loaded


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job.get("steps", [])]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_actions_are_few_and_pinned_to_a_commit(path: Path) -> None:
    for line in re.findall(r"- uses: (.*)", path.read_text(encoding="utf-8")):
        found = re.fullmatch(r"([\w/-]+)@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)
        assert found, f"{line}: pin a commit, with its version behind it"
        assert found[1] in ACTIONS, f"{line}: do it in a run: step of ours"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_event_text_reaches_a_shell_and_every_job_ends(path: Path) -> None:
    workflow = load(path)
    assert not [step["run"] for step in steps(workflow) if "${{" in step.get("run", "")]
    for job in workflow["jobs"].values():
        if "uses" in job:  # that workflow limits itself by what it is given
            assert job["uses"] == "./.github/workflows/lane.yml"
            assert job["with"].get("minutes", 60) <= 120
        elif path.stem == "lane":
            assert job["timeout-minutes"] == "${{ inputs.minutes }}"
        else:
            assert job["timeout-minutes"] <= 120
    checkouts = [step for step in steps(workflow) if step.get("uses", "").startswith("actions/checkout")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_what_runs_untrusted_code_holds_nothing() -> None:
    for name in ("measure", "lane", "checks"):
        workflow = load(FOLDER / f"{name}.yml")
        tried = {} if name == "checks" else {"actions": "read"}  # by earlier runs
        assert workflow["permissions"] == {"contents": "read", **tried}
        assert all("permissions" not in job for job in workflow["jobs"].values())
        assert "secrets" not in yaml.safe_dump(workflow)  # neither named nor inherited
        events = {"workflow_call"} if name == "lane" else {"pull_request", "merge_group", "push"}
        assert set(workflow["on"]) == events
    for name in ("measure", "lane", "refresh", "creep"):
        assert load(FOLDER / f"{name}.yml")["cache-mode"] == "none"


def test_what_holds_a_token_runs_no_untrusted_code() -> None:
    workflow = load(FOLDER / "comment.yml")
    assert workflow["permissions"] == {}
    assert workflow["cache-mode"] == "none"
    assert workflow["on"] == {
        "workflow_run": {"workflows": [load(FOLDER / "measure.yml")["name"]], "types": ["completed"]}
    }
    assert workflow["concurrency"]["queue"] == "max"
    (job,) = workflow["jobs"].values()
    assert job["permissions"] == {
        "actions": "read", "contents": "read", "pull-requests": "write", "statuses": "write",
    }  # fmt: skip
    assert "self-hosted" not in str(job["runs-on"])
    (checkout,) = [step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout")]
    assert not {"ref", "repository", "allow-unsafe-pr-checkout"} & set(checkout["with"])
    holders = [step for step in job["steps"] if "GITHUB_TOKEN" in step.get("env", {})]
    assert [step["run"] for step in holders] == ["python -m perfguard comment --output=perfguard-comment"]


LANES = ["nvidia-h100", "nvidia-h200", "amd-mi300x", "cpu"]


def runners(folder: Path) -> list[dict[str, Any]]:
    """What scripts/lanes tells the workflows of the settings in `folder`."""
    line = [sys.executable, str(ROOT / "scripts" / "lanes")]
    told = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=True).stdout
    name, _, value = told.strip().partition("=")
    assert (name, told.count("\n")) == ("lanes", 1)
    loaded: list[dict[str, Any]] = json.loads(value)
    return loaded


def test_the_lanes_are_one_list(tmp_path: Path) -> None:
    """Those that measure.yml, refresh.yml and creep.yml start are those that comment.yml waits for."""
    assert [each["lane"] for each in runners(ROOT)] == SETTINGS["tool"]["perfguard"]["lanes"]
    (tmp_path / "pyproject.toml").write_text(f"[tool.perfguard]\nlanes = {json.dumps(LANES)}\n")
    assert runners(tmp_path) == [
        *({"lane": lane, "runner": ["self-hosted", "gpu", lane]} for lane in LANES[:3]),
        {"lane": "cpu", "runner": ["ubuntu-24.04"]},
    ]
    for name in ("measure", "refresh", "creep"):
        jobs = load(FOLDER / f"{name}.yml")["jobs"]
        (read,) = [step for step in jobs["lanes"]["steps"] if step.get("id") == "read"]
        assert read["run"] == 'python3 scripts/lanes >>"$GITHUB_OUTPUT"'
        assert jobs["lanes"]["outputs"]["lanes"] == "${{ steps.read.outputs.lanes }}"
        measure = jobs["measure"]
        assert measure["needs"] == "lanes"
        assert measure["strategy"] == {
            "fail-fast": False, "matrix": {"include": "${{ fromJSON(needs.lanes.outputs.lanes) }}"},
        }  # fmt: skip
        assert measure["with"] | {"minutes": 0, "update": ""} == {
            "lane": "${{ matrix.lane }}", "runner": "${{ toJSON(matrix.runner) }}", "minutes": 0, "update": "",
        }  # fmt: skip


def test_a_lane_with_any_name_is_one_line_of_output(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.perfguard]\nlanes = ["x\\nother=1"]\n')
    assert runners(tmp_path)[0]["lane"] == "x\nother=1"


@pytest.mark.parametrize("lane", SETTINGS["tool"]["perfguard"]["lanes"])
def test_a_lane_guards_what_is_remembered_of_it(tmp_path: Path, lane: str) -> None:
    """More would be "no baseline" in every comment, less would be "incomplete"."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "guard", tmp_path / "scripts")
    (tmp_path / "scripts" / "setup").write_text(f"cd {shlex.quote(str(ROOT))}; python=echo\n")
    line = ["bash", str(tmp_path / "scripts" / "guard"), f"--perfguard-lane={lane}"]
    told = subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()
    files = [ROOT / word for word in told if word.endswith(".py")]
    assert all(file.is_file() for file in files)
    folder = ROOT / "baselines" / lane
    assert {suite_of(file, ROOT) for file in files} == {path.stem for path in folder.glob("*.yaml")} != set()


def test_a_report_arrives_under_the_name_that_is_looked_for() -> None:
    _, measure, show, upload, _, baselines = load(FOLDER / "lane.yml")["jobs"]["lane"]["steps"][1:]
    assert show["if"] == "failure()"
    assert "-m perfguard report reports/report-*.json --as github-annotations" in show["run"]
    assert upload["if"] == "always()"
    assert upload["with"]["name"] == "perfguard-${{ inputs.lane }}-${{ github.run_attempt }}"
    # Not .perfguard: the action leaves hidden folders out.
    assert upload["with"]["path"] == "reports/report-*.json"
    assert '--perfguard-lane="$LANE" --perfguard-reports=reports' in measure["run"]
    assert baselines["if"] == "inputs.update != ''"


def test_what_was_tried_is_uploaded_where_the_next_run_looks_for_it() -> None:
    _, resume, *_, tried, _ = load(FOLDER / "lane.yml")["jobs"]["lane"]["steps"]
    assert resume["env"] == {"LANE": "${{ inputs.lane }}", "GITHUB_TOKEN": "${{ github.token }}"}
    assert resume["run"].endswith('"$python" -P -m perfguard resume "turns-$LANE"\n')
    assert tried["if"] == "always()"
    assert tried["with"]["name"] == "turns-${{ inputs.lane }}"
    assert tried["with"]["include-hidden-files"] is True
    assert ROOT / tried["with"]["path"] == Config(ROOT).cache_dir / "turns.json"


@pytest.mark.parametrize(
    ("base", "update"), [("", ""), ("", "new,faster"), ("0" * 40, ""), (f"{7:040}", ""), ("a b$(c)", "")]
)
def test_a_lane_measures_as_the_lane_it_is_and_writes_only_where_it_is_asked_to(
    tmp_path: Path, base: str, update: str
) -> None:
    (tmp_path / "scripts").mkdir()
    guard = tmp_path / "scripts" / "guard"
    guard.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
    guard.chmod(0o755)
    measure = load(FOLDER / "lane.yml")["jobs"]["lane"]["steps"][2]
    assert {name: measure["env"][name] for name in ("LANE", "UPDATE")} == {
        "LANE": "${{ inputs.lane }}", "UPDATE": "${{ inputs.update }}",
    }  # fmt: skip
    environment = {**os.environ, "LANE": "cpu", "UPDATE": update, "BASE": base}
    line = ["bash", "-e", "-c", measure["run"]]
    told = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    beside = [f"--perfguard-base={base}"] if base.strip("0") else []
    asked = [f"--perfguard-update={update}"] if update else []
    assert told.splitlines() == ["--perfguard-lane=cpu", "--perfguard-reports=reports", *beside, *asked]


SIDES = "github.event.pull_request.base.sha || github.event.merge_group.base_sha || github.event.before"


def test_a_lane_is_compared_with_what_its_commit_is_for_and_a_recording_with_nothing() -> None:
    checkout, _, measure = load(FOLDER / "lane.yml")["jobs"]["lane"]["steps"][:3]
    assert checkout["with"]["fetch-depth"] == 0
    assert measure["env"]["BASE"] == f"${{{{ inputs.update == '' && ({SIDES}) || '' }}}}"
    assert "update" not in load(FOLDER / "measure.yml")["jobs"]["measure"]["with"]
    assert load(FOLDER / "refresh.yml")["jobs"]["measure"]["with"]["update"]
    creep = load(FOLDER / "creep.yml")
    assert set(creep["on"]) == {"schedule", "workflow_dispatch"}  # which name no commit: each record's own is the base
    assert set(creep["jobs"]["measure"]["with"]) == {"lane", "runner"}


BOT = "41898282+github-actions[bot]@users.noreply.github.com"


class Refreshed:
    """A checkout with its remote, in which the steps of refresh.yml run with a `gh` that notes what it is asked."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.remote, self.checkout = folder, folder / "remote", folder / "checkout"
        self.git(folder, "init", "-q", "--bare", "-b", "main", str(self.remote))
        self.git(folder, "clone", "-q", str(self.remote), str(self.checkout))
        self.git(self.checkout, "switch", "-q", "--orphan", "main")
        for lane in ("cpu", "nvidia-h200", "amd-mi300x"):
            self.write(self.checkout / "baselines" / lane / "area.yaml", "old")
        self.write(self.checkout / "baselines" / "nvidia-h200" / "gone.yaml", "old")
        self.commit("somebody@localhost")
        self.git(self.checkout, "push", "-q", "origin", "main")
        self.sha = self.git(self.checkout, "rev-parse", "HEAD")
        put_program(folder / "gh", f'echo "$@" >>{shlex.quote(str(folder / "called"))}; [ "$1 $2" != "pr view" ]')

    @staticmethod
    def git(folder: Path, *arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=folder, check=True, capture_output=True, text=True
        ).stdout.strip()

    @staticmethod
    def write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def commit(self, email: str) -> None:
        self.git(self.checkout, "add", "--all")
        self.git(self.checkout, "-c", "user.name=x", "-c", f"user.email={email}", "commit", "-q", "-m", "x")

    def propose(self, **measured: str) -> str:
        """What the step prints for lanes that have measured these texts."""
        for lane, text in measured.items():
            self.write(self.folder / "measured" / f"baselines-{lane.replace('_', '-')}" / "area.yaml", text)
        (step,) = [step["run"] for step in steps(load(FOLDER / "refresh.yml")) if "gh pr create" in step.get("run", "")]
        environment = {
            **os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}", "RUNNER_TEMP": str(self.folder),
            "GITHUB_SHA": self.sha, "BASE": "main", "BOT": BOT,
        }  # fmt: skip
        line = ["bash", "-e", "-o", "pipefail", "-c", step]
        done = subprocess.run(line, cwd=self.checkout, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    def proposed(self) -> dict[str, dict[str, str]]:
        """By branch of the remote but main: file -> text in its baselines."""
        branches = self.git(self.remote, "for-each-ref", "--format=%(refname:short)").splitlines()
        return {
            branch: {
                path: self.git(self.remote, "show", f"{branch}:{path}")
                for path in self.git(self.remote, "ls-tree", "-r", "--name-only", branch).splitlines()
            }
            for branch in branches
            if branch != "main"
        }


OLD = {f"baselines/{file}": "old" for file in ("cpu/area.yaml", "nvidia-h200/area.yaml", "amd-mi300x/area.yaml")}


def test_what_a_lane_measured_anew_is_proposed_alone(tmp_path: Path) -> None:
    """Where a lane has failed, it has uploaded nothing; the others propose all the same, each its own folder."""
    place = Refreshed(tmp_path)
    place.propose(cpu="new", nvidia_h200="faster")
    gone = {"baselines/nvidia-h200/gone.yaml": "old"}
    assert place.proposed() == {
        "perfguard/refresh-cpu": OLD | gone | {"baselines/cpu/area.yaml": "new"},
        "perfguard/refresh-nvidia-h200": OLD | {"baselines/nvidia-h200/area.yaml": "faster"},
    }
    called = (tmp_path / "called").read_text()
    assert called.count("pr create --base main") == 2
    assert "--head perfguard/refresh-cpu --title Refresh the baselines of cpu" in called
    job = load(FOLDER / "refresh.yml")["jobs"]["propose"]
    assert job["if"] == "${{ !cancelled() && needs.measure.result != 'skipped' }}"


def test_nothing_new_and_no_lane_propose_nothing(tmp_path: Path) -> None:
    place = Refreshed(tmp_path)
    assert place.propose() == ""
    assert "cpu: nothing was read that is new" in place.propose(cpu="old")
    assert place.proposed() == {}


def test_a_proposal_is_renewed_unless_a_person_has_committed_to_it(tmp_path: Path) -> None:
    place = Refreshed(tmp_path)
    place.propose(cpu="first")
    place.propose(cpu="second")
    assert place.proposed()["perfguard/refresh-cpu"]["baselines/cpu/area.yaml"] == "second"
    place.write(place.checkout / "baselines" / "cpu" / "area.yaml", "by hand")
    place.commit("somebody@localhost")
    place.git(place.checkout, "push", "-q", "origin", "HEAD")
    told = place.propose(cpu="third", amd_mi300x="faster")
    assert "::warning::perfguard/refresh-cpu has a person's commits" in told
    assert place.proposed()["perfguard/refresh-cpu"]["baselines/cpu/area.yaml"] == "by hand"
    assert place.proposed()["perfguard/refresh-amd-mi300x"]["baselines/amd-mi300x/area.yaml"] == "faster"


def run_step(name: str, folder: Path, **environment: str) -> str:
    """What a step of creep.yml prints; as on a runner, in `folder`, whose programs come first."""
    (step,) = [step["run"] for step in steps(load(FOLDER / "creep.yml")) if step.get("name") == name]
    known = {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "RUNNER_TEMP": str(folder),
        "PYTHONPATH": str(ROOT),
    }
    line = ["bash", "-e", "-c", step]
    return subprocess.run(line, cwd=folder, env=known | environment, capture_output=True, text=True, check=True).stdout


def put_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_the_lanes_of_a_night_are_one_report(tmp_path: Path) -> None:
    """Of a lane's attempts the last, and every lane that is expected, also one that uploaded nothing."""
    (tmp_path / "pyproject.toml").write_text('[tool.perfguard]\nlanes = ["nvidia-h200", "cpu"]\n')
    put_program(tmp_path / "python", f'exec {shlex.quote(sys.executable)} "$@"')
    for attempt, word in ((1, Word.PASS), (2, Word.PASS), (10, Word.SLOWER)):
        folder = tmp_path / "measured" / f"perfguard-nvidia-h200-{attempt}"
        folder.mkdir(parents=True)
        verdict = Verdict(word, "device_time_us", before=50.0, after=51.0, ratio=1.02)
        made = report([measured("rows", 51.0, verdicts=[verdict])])
        (folder / "report-nvidia-h200.json").write_bytes(dump_report(made))
    run_step("Merge them into the summary", tmp_path, GITHUB_STEP_SUMMARY=str(tmp_path / "summary"))
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert text == (tmp_path / "summary").read_text(encoding="utf-8")
    assert text.startswith("### ❌ perfguard: 1 case slower, 1 lane without a result")
    assert "no report was given for this lane" in text


def test_a_night_without_a_report_says_so(tmp_path: Path) -> None:
    put_program(tmp_path / "gh", "echo no valid artifacts found to download >&2; exit 1")
    run_step("Fetch the lanes' reports", tmp_path, GITHUB_RUN_ID="7")
    run_step("Merge them into the summary", tmp_path, GITHUB_STEP_SUMMARY=str(tmp_path / "summary"))
    assert (tmp_path / "summary").read_text() == "no lane's report could be fetched: look at the jobs of this run\n"


@pytest.mark.parametrize("result", ["success", "failure", "cancelled"])
@pytest.mark.parametrize("known", [True, False], ids=["open", "no issue"])
def test_one_issue_holds_what_is_red_at_night(tmp_path: Path, result: str, known: bool) -> None:
    (step,) = [step for step in steps(load(FOLDER / "creep.yml")) if "gh issue" in step.get("run", "")]
    title = step["env"]["TITLE"]
    others = f"7\t{title}, and more\n12\tsomething else\n"
    (tmp_path / "issues").write_text(others + (f"31\t{title}\n" if known else ""))
    ours = '[ "$1 $2 $3 $4" = "issue list --app github-actions" ]'  # anybody may open one of that title
    put_program(tmp_path / "gh", f'if {ours}; then cat issues; else printf "%s\\n" "$@" >called; fi')
    (tmp_path / "report.md").write_text("### the report\n")
    where = {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "a/b", "GITHUB_RUN_ID": "5"}
    given = {"TITLE": title, "RESULT": result, "GITHUB_SHA": f"{7:040}"}
    run_step(step["name"], tmp_path, **where, **given)
    called = (tmp_path / "called").read_text().splitlines() if (tmp_path / "called").exists() else []
    run, body = "https://github.com/a/b/actions/runs/5", tmp_path / "issue.md"
    if result == "success":
        assert called == (["issue", "close", "31", "--comment", f"Green again: {run}"] if known else [])
        assert not body.exists()
        return
    edit, create = ["issue", "edit", "31"], ["issue", "create", "--title", title]
    assert called == [*(edit if known else create), "--body-file", str(body)]
    text = body.read_text()
    assert text.startswith(f"[A nightly run]({run}) of {'0' * 12} beside its records is red.")
    assert "`perfguard accept --run 5 --reason 'why'`" in text
    assert text.endswith("\n\n### the report\n")


def test_only_the_job_of_the_issue_may_write_one() -> None:
    workflow = load(FOLDER / "creep.yml")
    assert workflow["permissions"] == {}
    jobs = workflow["jobs"]
    assert jobs["lanes"]["if"] == "vars.PERFGUARD_CREEP == '1'"
    reads = {"contents": "read"}
    assert jobs["lanes"]["permissions"] == reads
    assert jobs["measure"]["permissions"] == load(FOLDER / "lane.yml")["permissions"]  # less would start nothing
    assert jobs["report"]["permissions"] == {"actions": "read", "issues": "write", **reads}
    assert "self-hosted" not in str(jobs["report"]["runs-on"])
    holders = [step["run"] for step in steps(workflow) if "github.token" in str(step.get("env"))]
    assert len(holders) == 2
    assert all("python" not in run for run in holders)
    assert jobs["report"]["if"] == "${{ !cancelled() && needs.measure.result != 'skipped' }}"


def test_the_action_does_what_the_workflow_does() -> None:
    action = load_action()
    install, post = action["runs"]["steps"]
    ours = [step["run"] for step in steps(load(FOLDER / "comment.yml")) if "run" in step]
    assert (
        install["run"].replace('"$ACTION/.github/requirements-comment.txt"', ".github/requirements-comment.txt")
        == ours[0]
    )
    assert post["run"].startswith("python -P -m perfguard comment")
    assert "GITHUB_TOKEN" not in install.get("env", {})


def test_perfguard_init_writes_these_workflows() -> None:
    """Up to the list of lanes, and to the steps that install and start perfguard."""
    source, installed = Source("github.com", "OWNER/perfguard", f"{7:040}"), Installed("3.12", ["torch"], [])
    made = {**lane_workflows(source, installed), "measure.yml": measure_workflow({"cpu": HOSTED}, "main")}
    ours = {name: (FOLDER / name).read_text(encoding="utf-8") for name in made}
    started = r'"\$RUNNER_TEMP/perfguard/bin/python" -m pytest --perfguard "\$\{workers\[@\]\}" \\\n +'
    lane = re.sub(r"      - uses: actions/setup-python@.*?(?=      - name: Go on)", "", made["lane.yml"], flags=re.S)
    lane = re.sub(started, "scripts/guard ", re.sub(r" +workers=\(\); .*\n", "", lane))
    lane = lane.replace('"$RUNNER_TEMP/perfguard/bin/python"', '"$python"')
    assert lane == re.sub(r" +source scripts/setup .*\n", "", ours["lane.yml"])
    posting = r"      - name: Install what.*?(?=      - uses: actions/upload)"
    action = r"      - name: Judge and post\n        uses: OWNER.*?(?=      - uses: actions/upload)"
    assert re.sub(action, "", made["comment.yml"], flags=re.S) == re.sub(posting, "", ours["comment.yml"], flags=re.S)
    reading = re.sub(r"  lanes:\n    name: lanes\n.*?(?=  measure:\n)", "", ours["measure.yml"], flags=re.S)
    reading = reading.replace(" ${{ fromJSON(needs.lanes.outputs.lanes) }}", "")
    looking = re.sub(r"  changes:\n    name: changes\n.*?(?=  measure:\n)", "", made["measure.yml"], flags=re.S)
    looking = looking.replace("needs: changes", "needs: lanes").replace("needs.changes", "needs.lanes")
    assert re.sub(r" +- \{lane: .*\n", "", looking) == reading
    pins = r"uses: (actions/\S+ # .*)"
    _, guard = guard_workflow(source, installed, "")
    looks = [
        [step for step in steps(yaml.safe_load(text)) if step.get("id") == "look"] for text in (*made.values(), guard)
    ]
    assert [each for each in looks if each] == [[look_step()]] * 2
    assert set(re.findall(pins, guard)) <= set(re.findall(pins, "".join(ours.values())))


def look_step() -> dict[str, Any]:
    (found,) = [step for step in steps(load(FOLDER / "measure.yml")) if step.get("id") == "look"]
    return found


@pytest.mark.parametrize(
    ("names", "measures"),
    [
        (["README.md", "docs/a guide.RST", "docs/caf\u00e9.md"], False), (["README.md", "kernel.py"], True),
        (["docs/conf.py"], True), (["baselines/cpu/a.yaml"], True), (["md"], True), ([], True),
        ([f"{number}.md" for number in range(300)], True),
    ],
)  # fmt: skip
def test_documents_alone_start_no_lane(names: list[str], measures: bool, tmp_path: Path) -> None:
    """Whatever the base branch has got since; a push, which names no base, is measured."""

    def git(*arguments: str) -> str:
        line = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    def commit(*paths: str) -> str:
        for path in map(tmp_path.joinpath, paths):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
        git("add", "--all")
        git("commit", "--quiet", "--allow-empty", "--message=x")
        return git("rev-parse", "HEAD")

    def look(base: str) -> tuple[str, str]:
        out, summary = tmp_path / ".git" / "out", tmp_path / ".git" / "summary"
        for path in (out, summary):
            path.write_text("")
        given = {"BASE": base, "HEAD": head, "GITHUB_OUTPUT": str(out), "GITHUB_STEP_SUMMARY": str(summary)}
        subprocess.run(["bash", "-e", "-c", look_step()["run"]], cwd=tmp_path, env=os.environ | given, check=True)
        return out.read_text(), summary.read_text()

    git("init", "--quiet", "--initial-branch=main")
    commit("old.py")
    git("switch", "--quiet", "--create=topic")
    head = commit(*names)
    git("switch", "--quiet", "main")
    base = commit("later.py")
    said = "perfguard: nothing to measure: only documents changed\n"
    assert look(base) == (("code=true\n", "") if measures else ("", said))
    assert look("") == ("code=true\n", "")


def test_the_oldest_and_the_newest_versions_are_tried() -> None:
    job = load(FOLDER / "checks.yml")["jobs"]["versions"]
    tried = {each["versions"]: each["python"] for each in job["strategy"]["matrix"]["include"]}
    assert set(tried) == {"oldest", "newest"}
    assert f">={tried['oldest']}" == SETTINGS["project"]["requires-python"]
    listed = {
        which: subprocess.run(
            [sys.executable, "scripts/versions", "--list", which], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split("\n")
        for which in tried
    }
    assert {"torch==2.11.*", "pytest==8.2.*", "triton==3.6.*; platform_system == 'Linux'"} <= set(listed["oldest"])
    assert set(SETTINGS["project"]["dependencies"]) < set(listed["newest"])
    assert len(listed["oldest"]) == len(listed["newest"])


def load_action() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    return loaded


def test_the_post_job_installs_every_dependency_by_hash() -> None:
    text = (ROOT / ".github" / "requirements-comment.txt").read_text(encoding="utf-8")
    locked = dict(re.findall(r"^([\w.-]+)==(\S+) \\$", text, flags=re.MULTILINE))
    project = SETTINGS["project"]
    for wanted in project["dependencies"]:
        name = re.match(r"[\w.-]+", wanted)
        assert name is not None
        assert name[0].lower() in locked, f"{wanted}: run the command on top of requirements-comment.txt"
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE))
    pinned = {name.lower(): version for name, version in pinned.items()}
    assert {name: version for name, version in locked.items() if pinned.get(name) != version} == {}
    assert "torch" not in locked
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", text)) >= len(locked)
    assert "://" not in text
