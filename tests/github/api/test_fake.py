"""The fake itself: what GitHub's description does not know, it refuses, and remembers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.github.api.fake import FakeGitHub
from tests.github.api.fake.world import TOKEN, sha

HEADERS = {
    "Accept": "application/vnd.github+json",
    "Authorization": f"Bearer {TOKEN}",
    "User-Agent": "perfguard/1",
    "X-GitHub-Api-Version": "2022-11-28",
}
COMMENTS = "/repos/o/r/issues/7/comments"


@pytest.fixture
def fake(_sockets: FakeGitHub) -> Iterator[FakeGitHub]:
    _sockets.reset()
    _sockets.world.add_pull()
    yield _sockets
    _sockets.reset()


@pytest.mark.parametrize(
    ("method", "path", "options", "status"),
    [
        ("GET", "/repos/o/r/issue/7/comments", {}, 404),
        ("GET", f"{COMMENTS}/", {}, 404),
        ("PUT", COMMENTS, {"json": {"body": "x"}}, 404),
        ("POST", COMMENTS, {"json": {}}, 422),
        ("POST", COMMENTS, {"json": {"body": 1}}, 422),
        ("POST", COMMENTS, {"json": {"body": "x", "title": "y"}}, 422),
        ("POST", COMMENTS, {"data": "body=x"}, 400),
        ("GET", COMMENTS, {"params": {"per_page": "101"}}, 422),
        ("GET", COMMENTS, {"params": {"sort": "created"}}, 422),
        ("GET", COMMENTS, {"json": {"body": "x"}}, 422),
        ("GET", "/repos/o/r/pulls", {"params": {"head": "branch"}}, 422),
        ("POST", f"/repos/o/r/statuses/{sha('head')}", {"json": {"state": "neutral"}}, 422),
        ("POST", "/repos/o/r/statuses/main", {"json": {"state": "success"}}, 404),
        ("GET", COMMENTS, {"headers": {"X-GitHub-Api-Version": "2021-01-01"}}, 400),
        ("GET", COMMENTS, {"headers": {"User-Agent": "python-requests"}}, 400),
        ("GET", COMMENTS, {"headers": {"Accept": "*/*"}}, 400),
        ("GET", COMMENTS, {"headers": {"Authorization": "Basic bTpz"}}, 400),
    ],
)
def test_a_malformed_request_is_refused_and_remembered(
    fake: FakeGitHub, method: str, path: str, options: dict[str, Any], status: int
) -> None:
    headers = {**HEADERS, **options.pop("headers", {})}
    answer = requests.request(method, fake.api + path, headers=headers, timeout=10, **options)
    assert answer.status_code == status
    assert len(fake.violations) == 1


def test_a_well_formed_one_is_answered(fake: FakeGitHub) -> None:
    made = requests.post(fake.api + COMMENTS, headers=HEADERS, json={"body": "x"}, timeout=10)
    assert made.status_code == 201
    listed = requests.get(fake.api + COMMENTS, headers=HEADERS, timeout=10).json()
    assert [comment["id"] for comment in listed] == [made.json()["id"]]
    assert requests.get(fake.api + COMMENTS, headers={**HEADERS, "Authorization": "Bearer no"}, timeout=10).ok is False
    assert fake.violations == []


def test_storage_takes_no_token(fake: FakeGitHub) -> None:
    artifact = fake.world.add_artifact(1, "perfguard-h200-1", b"zip")
    url = f"{fake.storage}/{artifact.id}.zip"
    assert requests.get(url, timeout=10).content == b"zip"
    assert requests.get(url, headers=HEADERS, timeout=10).status_code == 401
    assert len(fake.violations) == 1
