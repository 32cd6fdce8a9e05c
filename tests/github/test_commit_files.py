"""Merge base and baseline files at a commit."""

from __future__ import annotations

import pytest

from perfguard.github.api.client import Client
from perfguard.github.api.commit_files import CommitFiles, Folder, find_merge_base
from perfguard.model.errors import GitHubError
from tests.github.fake import ALL_PERMISSIONS, TOKEN, FakeGitHub, sha

BASE, HEAD = sha("base"), sha("head")


@pytest.fixture
def files(client: Client) -> CommitFiles:
    return CommitFiles(client, 500, 16_000_000)


def test_the_merge_base(github: FakeGitHub, client: Client) -> None:
    github.data.add_comparison("base", "head", "fork point")
    github.data.files[sha("fork point")] = {"a.py": b"1", "b.py": b"1", "c.md": b"1"}
    github.data.files[HEAD] = {"a.py": b"2", "c.md": b"1", "d.py": b"1"}
    assert find_merge_base(client, BASE, HEAD) == (sha("fork point"), ["a.py", "b.py", "d.py"])
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
        CommitFiles(client, 500, 16_000_000).folder("baselines", BASE)


def test_what_is_not_read_is_named(github: FakeGitHub, client: Client, files: CommitFiles) -> None:
    github.data.files[BASE] = {
        "baselines/x/large.yaml": b"x" * 16_000_001,
        "baselines/x/fine.yaml": b"x",
        "baseline": b"",
    }
    github.data.links.add("baselines/x/link.yaml")
    found = files.folder("baselines", BASE)
    assert list(found.files) == ["baselines/x/fine.yaml"]
    assert found.problems == {
        "baselines/x/large.yaml": "16,000,001 bytes, more than 16,000,000: not read; split it",
        "baselines/x/link.yaml": "a symlink: not followed",
    }
    assert files.folder("baseline", BASE).problems == {"baseline": "no folder: not read"}
    github.data.most_entries = 2
    assert "more entries than GitHub lists" in files.folder("baselines/x", BASE).problems["baselines/x"]
    assert "more than 0 files" in CommitFiles(client, 0, 16_000_000).folder("baselines", BASE).problems["baselines"]


# -- what a change may cost --------------------------------------------------------------------------------------------


def put(github: FakeGitHub, commit: str, folders: int, files: int, content: str) -> None:
    github.data.files[commit] = {
        f"baselines/{folder}/{file}.yaml": f"{content} {folder} {file}".encode()
        for folder in range(folders)
        for file in range(files)
    }


def changed(github: FakeGitHub, files: CommitFiles) -> tuple[Folder, list[str]]:
    """What is read of the head beside the base, and the requests for it. Only folder 0 is a lane's."""
    base = files.folder("baselines", BASE)
    github.requests.clear()
    found = files.folder("baselines", HEAD, base=base, wanted=lambda name: name == "0")
    return found, [path for _, path in github.requests]


def test_a_change_that_leaves_baselines_alone_costs_one_request(github: FakeGitHub, files: CommitFiles) -> None:
    put(github, BASE, 3, 20, "same")
    put(github, HEAD, 3, 20, "same")
    github.data.files[HEAD]["code.py"] = b"other"
    found, requests = changed(github, files)
    assert found is files.folder("baselines", BASE, base=found)
    assert len(requests) == 1


def test_hundreds_of_new_files_cost_a_tenth_of_an_hours_requests(github: FakeGitHub, files: CommitFiles) -> None:
    put(github, BASE, 1, 1, "old")
    put(github, HEAD, 1, 490, "new")
    found, requests = changed(github, files)
    assert len(found.files) == 100
    assert len(requests) == 2 + 100
    assert found.problems == {
        "baselines": "more than 100 changed files, or 16,000,000 bytes of them: the rest is not read"
    }


def test_all_files_of_a_large_base_may_be_recorded_anew(github: FakeGitHub, files: CommitFiles) -> None:
    put(github, BASE, 1, 150, "old")
    put(github, HEAD, 1, 150, "new")
    found, _ = changed(github, files)
    assert len(found.files) == 150
    assert found.problems == {}


def test_a_change_may_double_the_bytes_of_the_base(github: FakeGitHub, client: Client) -> None:
    files = CommitFiles(client, 500, 30)
    put(github, BASE, 1, 2, "old " * 4)
    put(github, HEAD, 1, 4, "new " * 4)
    assert changed(github, files)[0].problems == {}
    put(github, HEAD, 1, 5, "newer " * 3)
    assert "more than 100 changed files, or 80 bytes of them" in changed(github, files)[0].problems["baselines"]


def test_folders_of_no_lane_are_listed_in_one_line_and_not_read(github: FakeGitHub, files: CommitFiles) -> None:
    put(github, BASE, 1, 1, "old")
    put(github, HEAD, 900, 1, "new")
    found, requests = changed(github, files)
    assert list(found.files) == ["baselines/0/0.yaml"]
    assert len(requests) == 2 + 1
    assert found.problems == {"baselines/1": "no lane has this folder, nor 898 others, nor the base: not read"}


def test_a_content_that_is_no_base64(github: FakeGitHub, files: CommitFiles) -> None:
    github.data.files[BASE] = {"x/a.yaml": b"x"}
    github.fail(path="/blobs/", status=200, body={"content": "*not base64*", "encoding": "base64"})
    with pytest.raises(GitHubError, match=r"a\.yaml: not the base64"):
        files.folder("x", BASE)
