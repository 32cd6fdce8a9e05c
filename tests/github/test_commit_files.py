"""Merge base and baseline files at a commit."""

from __future__ import annotations

import pytest

from perfguard.github.api import commit_files
from perfguard.github.api.client import Client
from perfguard.github.api.commit_files import CommitFiles, find_merge_base
from perfguard.model.errors import GitHubError
from tests.github.fake import ALL_PERMISSIONS, TOKEN, FakeGitHub, sha

BASE, HEAD = sha("base"), sha("head")


@pytest.fixture
def files(client: Client) -> CommitFiles:
    return CommitFiles(client)


def test_the_merge_base(github: FakeGitHub, client: Client) -> None:
    github.data.add_comparison("base", "head", "fork point")
    assert find_merge_base(client, BASE, HEAD) == sha("fork point")
    with pytest.raises(GitHubError, match="No common ancestor"):
        find_merge_base(client, BASE, sha("unrelated"))


def test_a_folder_with_those_below_it(github: FakeGitHub, files: CommitFiles) -> None:
    github.data.files[BASE] = {
        "README.md": b"",
        "baselines/nvidia-h200/suite.yaml": b"schema: 1\n",
        "baselines/nvidia-h200/notes.md": b"no baseline",
        "baselines/targets/cpu/50%#1?x é.yaml": b"schema: 2\n",
        "baselines/targets/cpu/a/too/deep.yaml": b"",
    }
    found = files.folder("baselines", BASE)
    assert found.files == {
        "baselines/nvidia-h200/suite.yaml": b"schema: 1\n",
        "baselines/targets/cpu/50%#1?x é.yaml": b"schema: 2\n",
    }
    assert found.problems == {}
    assert list(files.folder("baselines/targets", BASE).files) == ["baselines/targets/cpu/50%#1?x é.yaml"]


def test_one_content_is_downloaded_once(github: FakeGitHub, files: CommitFiles) -> None:
    github.data.files[BASE] = {"baselines/x/a.yaml": b"same", "baselines/x/b.yaml": b"old"}
    github.data.files[HEAD] = {"baselines/x/a.yaml": b"same", "baselines/x/b.yaml": b"new"}
    assert files.folder("baselines", BASE).files["baselines/x/b.yaml"] == b"old"
    assert files.folder("baselines", HEAD).files["baselines/x/b.yaml"] == b"new"
    assert len([path for _, path in github.requests if "/blobs/" in path]) == 3


def test_an_absent_folder_is_empty_but_an_unreadable_commit_is_no_empty_folder(
    github: FakeGitHub, client: Client, files: CommitFiles
) -> None:
    github.data.files[BASE] = {"README.md": b"", "a/b.yaml": b"x"}
    for absent in ("baselines", "README.md/baselines", "a/baselines"):
        assert files.folder(absent, BASE).files == {}
    assert files.folder("a", BASE).files == {"a/b.yaml": b"x"}
    with pytest.raises(GitHubError, match="404 Not Found"):
        files.folder("baselines", HEAD)
    github.data.tokens[TOKEN] = ALL_PERMISSIONS - {"contents=read"}
    with pytest.raises(GitHubError, match="may lack contents=read"):
        CommitFiles(client).folder("baselines", BASE)


def test_what_is_not_read_is_named(github: FakeGitHub, files: CommitFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    github.data.files[BASE] = {
        "baselines/x/large.yaml": b"x" * 1_000_001,
        "baselines/x/fine.yaml": b"x",
        "baseline": b"",
    }
    github.data.links.add("baselines/x/link.yaml")
    found = files.folder("baselines", BASE)
    assert list(found.files) == ["baselines/x/fine.yaml"]
    assert found.problems == {
        "baselines/x/large.yaml": "1,000,001 bytes, larger than 1,000,000 bytes: not read",
        "baselines/x/link.yaml": "a symlink: not followed",
    }
    assert files.folder("baseline", BASE).problems == {"baseline": "no folder: not read"}
    github.data.most_entries = 2
    assert "more entries than GitHub lists" in files.folder("baselines/x", BASE).problems["baselines/x"]
    monkeypatch.setattr(commit_files, "MOST_FILES", 0)
    assert "more than 0 files" in files.folder("baselines", BASE).problems["baselines"]


def test_thousands_of_folders_cost_two_calls(github: FakeGitHub, files: CommitFiles) -> None:
    github.data.files[BASE] = {"baselines/x/a.yaml": b"same"}
    github.data.files[HEAD] = {f"baselines/{one}/{two}/a.yaml": b"same" for one in range(30) for two in range(30)}
    files.folder("baselines", BASE)
    github.requests.clear()
    after = files.folder("baselines", HEAD)
    assert len(github.requests) == 2
    assert len(after.files) == 500
    assert "more than 500 files" in after.problems["baselines"]


def test_a_content_that_is_no_base64(github: FakeGitHub, files: CommitFiles) -> None:
    github.data.files[BASE] = {"x/a.yaml": b"x"}
    github.fail(path="/blobs/", status=200, body={"content": "*not base64*", "encoding": "base64"})
    with pytest.raises(GitHubError, match=r"a\.yaml: not the base64"):
        files.folder("x", BASE)
