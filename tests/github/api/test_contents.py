"""Merge base and baseline files at a commit."""

from __future__ import annotations

import pytest

from perfguard.github.api.client import Client
from perfguard.github.api.contents import fetch_tree, find_merge_base
from perfguard.github.api.troubles import NotFound, Unexpected
from perfguard.model.errors import GitHubError
from tests.github.api.fake import FakeGitHub
from tests.github.api.fake.world import ALL_PERMISSIONS, TOKEN, sha

BASE, HEAD = sha("base"), sha("head")


def test_the_merge_base_with_its_age(github: FakeGitHub, client: Client) -> None:
    github.world.add_comparison("base", "head", "fork point", date="2026-11-16T08:00:00Z", behind=12)
    found = find_merge_base(client, BASE, HEAD)
    assert (found.sha, found.age_days, found.behind) == (sha("fork point"), 5, 12)
    assert found.date.startswith("2026-11-16T08:00:00")


def test_commits_without_a_common_one(client: Client) -> None:
    with pytest.raises(NotFound, match="No common ancestor"):
        find_merge_base(client, BASE, HEAD)


def test_a_folder_with_those_below_it(github: FakeGitHub, client: Client) -> None:
    github.world.files[BASE] = {
        "README.md": b"",
        "baselines/nvidia-h200/suite.yaml": b"schema: 1\n",
        "baselines/nvidia-h200/notes.md": b"no baseline",
        "baselines/targets/cpu/suite.yaml": b"schema: 2\n",
        "baselines/targets/cpu/a/too/deep.yaml": b"",
    }
    tree = fetch_tree(client, "baselines", BASE)
    assert {path: file.data for path, file in tree.files.items()} == {
        "baselines/nvidia-h200/suite.yaml": b"schema: 1\n",
        "baselines/targets/cpu/suite.yaml": b"schema: 2\n",
    }
    assert tree.problems == {}
    assert list(fetch_tree(client, "baselines/targets", BASE).files) == ["baselines/targets/cpu/suite.yaml"]


def test_what_is_known_is_not_downloaded_again(github: FakeGitHub, client: Client) -> None:
    github.world.files[BASE] = {"baselines/x/a.yaml": b"same", "baselines/x/b.yaml": b"old"}
    github.world.files[HEAD] = {"baselines/x/a.yaml": b"same", "baselines/x/b.yaml": b"new"}
    before = fetch_tree(client, "baselines", BASE)
    github.requests.clear()
    after = fetch_tree(client, "baselines", HEAD, before.files)
    assert after.files["baselines/x/b.yaml"].data == b"new"
    assert after.files["baselines/x/a.yaml"] == before.files["baselines/x/a.yaml"]
    assert [path for _, path in github.requests if path.endswith(".yaml")] == ["/repos/o/r/contents/baselines/x/b.yaml"]


def test_an_absent_folder_is_empty_but_an_unreadable_commit_is_no_empty_folder(
    github: FakeGitHub, client: Client
) -> None:
    github.world.files[BASE] = {"README.md": b""}
    assert fetch_tree(client, "baselines", BASE).files == {}
    with pytest.raises(GitHubError, match="shows nothing of this commit; give the job contents: read"):
        fetch_tree(client, "baselines", HEAD)
    github.world.tokens[TOKEN] = ALL_PERMISSIONS - {"contents=read"}
    with pytest.raises(GitHubError, match="lacks contents=read"):
        fetch_tree(client, "baselines", BASE)


def test_names_that_a_url_would_take_apart(github: FakeGitHub, client: Client) -> None:
    path = "baselines/a b/50%#1?x.yaml"
    github.world.files[BASE] = {path: b"x"}
    assert fetch_tree(client, "baselines", BASE).files[path].data == b"x"


def test_large_files_links_and_full_folders_are_named(github: FakeGitHub, client: Client) -> None:
    github.world.files[BASE] = {"baselines/x/large.yaml": b"x" * 1_000_001, "baselines/x/fine.yaml": b"x"}
    github.world.links["baselines/x/link.yaml"] = "/etc/passwd"
    tree = fetch_tree(client, "baselines", BASE)
    assert list(tree.files) == ["baselines/x/fine.yaml"]
    assert tree.problems == {
        "baselines/x/large.yaml": "1,000,001 bytes, larger than 1,000,000 bytes: not read",
        "baselines/x/link.yaml": "a symlink: not followed",
    }


def test_more_files_than_are_listed_or_read(
    github: FakeGitHub, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfguard.github.api.contents.MOST_FILES", 3)
    github.world.files[BASE] = {f"baselines/x/{number:04}.yaml": b"same" for number in range(1_001)}
    tree = fetch_tree(client, "baselines", BASE)
    assert len(tree.files) == 3
    assert "more than 3 files" in tree.problems["baselines"]
    github.world.most_leaves = 2
    tree = fetch_tree(client, "baselines", BASE)
    assert len(tree.files) == 2
    assert "more entries than GitHub lists" in tree.problems["baselines"]
    github.world.files[BASE] = {f"{number:04}": b"" for number in range(1_001)} | {"baselines/a.yaml": b""}
    assert "not among the 1,000 entries" in fetch_tree(client, "baselines", BASE).problems["baselines"]


def test_thousands_of_folders_cost_two_calls(github: FakeGitHub, client: Client) -> None:
    github.world.files[BASE] = {"baselines/x/a.yaml": b"same"}
    github.world.files[HEAD] = {f"baselines/{one}/{two}/a.yaml": b"same" for one in range(50) for two in range(50)}
    before = fetch_tree(client, "baselines", BASE)
    github.requests.clear()
    after = fetch_tree(client, "baselines", HEAD, before.files)
    assert len(github.requests) == 2
    assert len(after.files) == 500
    assert "more than 500 files" in after.problems["baselines"]


@pytest.mark.parametrize(
    "content",
    [
        {"type": "file", "sha": "1", "encoding": "none", "content": ""},
        {"type": "symlink", "sha": "1", "encoding": "base64", "content": ""},
        {"type": "file", "sha": "1", "encoding": "base64", "content": "*not base64*"},
    ],
)
def test_a_file_that_comes_otherwise(github: FakeGitHub, client: Client, content: dict[str, str]) -> None:
    github.world.files[BASE] = {"baselines/a.yaml": b"x"}
    headers = {"Content-Type": "application/json"}
    github.fail(path="a.yaml$", status=200, headers=headers, body=content)
    with pytest.raises(Unexpected, match=r"baselines/a\.yaml at"):
        fetch_tree(client, "baselines", BASE)
