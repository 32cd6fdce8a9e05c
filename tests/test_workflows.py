"""What the workflows promise: who may write, what runs with a token, pinned actions and packages, one list of lanes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

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
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


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
    assert all(job["timeout-minutes"] <= 120 for job in workflow["jobs"].values())
    checkouts = [step for step in steps(workflow) if step.get("uses", "").startswith("actions/checkout")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_what_runs_a_strangers_code_holds_nothing() -> None:
    for name in ("measure", "checks"):
        workflow = load(FOLDER / f"{name}.yml")
        assert workflow["permissions"] == {"contents": "read"}
        assert all("permissions" not in job for job in workflow["jobs"].values())
        assert "secrets." not in (FOLDER / f"{name}.yml").read_text(encoding="utf-8")
        assert set(workflow["on"]) == {"pull_request", "merge_group", "push"}
    assert load(FOLDER / "measure.yml")["cache-mode"] == "none"


def test_what_holds_a_token_runs_no_strangers_code() -> None:
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


def test_the_lanes_are_one_list() -> None:
    expected = SETTINGS["tool"]["perfguard"]["lanes"]
    for name in ("measure", "refresh"):
        job = load(FOLDER / f"{name}.yml")["jobs"]["measure"]
        assert job["strategy"] == {"fail-fast": False, "matrix": {"lane": expected}}
        assert job["runs-on"] == ["self-hosted", "gpu", "${{ matrix.lane }}"]


def test_a_report_arrives_under_the_name_that_is_looked_for() -> None:
    upload = load(FOLDER / "measure.yml")["jobs"]["measure"]["steps"][-1]
    assert upload["if"] == "always()"
    assert upload["with"]["name"] == "perfguard-${{ matrix.lane }}-${{ github.run_attempt }}"
    # Not .perfguard: the action leaves hidden folders out.
    assert upload["with"]["path"] == "reports/report-*.json"
    assert any("--perfguard-reports=reports" in step.get("run", "") for step in steps(load(FOLDER / "measure.yml")))


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


def load_action() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    return loaded


def test_the_post_job_installs_every_dependency_by_hash() -> None:
    text = (ROOT / ".github" / "requirements-comment.txt").read_text(encoding="utf-8")
    locked = dict(re.findall(r"^([\w.-]+)==(\S+) \\$", text, flags=re.MULTILINE))
    project = SETTINGS["project"]
    for wanted in [*project["dependencies"], *project["optional-dependencies"]["github"]]:
        name = re.match(r"[\w.-]+", wanted)
        assert name is not None
        assert name[0].lower() in locked, f"{wanted}: run the command on top of requirements-comment.txt"
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE))
    pinned = {name.lower(): version for name, version in pinned.items()}
    assert {name: version for name, version in locked.items() if pinned.get(name) != version} == {}
    assert "torch" not in locked
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", text)) >= len(locked)
    assert "://" not in text
