"""The sticky comment: one on a pull request, whatever stands there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfguard.github.api.client import Client
from perfguard.github.api.measured_run import Pull, Side
from perfguard.github.api.posts import Comment, order_in, post_comment
from perfguard.model.errors import GitHubError
from tests.github.fake import BOT, FakeGitHub, sha

RED, WORSE, GREEN = "1 case slower", "2 cases slower", "no change"
PULL = Pull(7, "open", Side(sha("head"), "topic"), Side(sha("base"), "main"))
COMMENTS = "/issues/7/comments$"
RUN = (5001, 2)
MARKER = "<!-- perfguard:v1 key=default run=5001.2 -->"
OURS = f"{MARKER}\n\n{RED}"

Post = Callable[..., str]


@pytest.fixture
def post(client: Client) -> Post:
    """Posts a text."""

    def posted(text: str = RED, *, wants: bool = True, order: tuple[int, int] = RUN) -> str:
        return post_comment(client, PULL, text, wants=wants, order=order)

    return posted


def texts(github: FakeGitHub) -> list[str]:
    """The texts of our comments, by id."""
    return [
        comment["body"].partition("\n\n")[2]
        for comment in github.data.on(7)
        if comment["user"] == BOT and "key=default run=" in comment["body"]
    ]


def test_a_comment_is_created_when_somebody_has_to_act_and_edited_from_then_on(github: FakeGitHub, post: Post) -> None:
    assert post(GREEN, wants=False).startswith("no comment: nobody has to act")
    assert github.writes == []
    assert post(RED) == "comment created"
    assert github.writes == [("POST", "/issues/7/comments")]
    (first,) = github.data.comments
    assert post(GREEN, wants=False) == "comment edited"
    assert list(github.data.comments) == [first]
    assert texts(github) == [GREEN]
    github.data.comments.clear()  # somebody deleted it
    assert post(GREEN, wants=False).startswith("no comment: nobody has to act")
    assert post(WORSE) == "comment created"
    assert texts(github) == [WORSE]


def test_ours_on_the_third_page_is_edited(github: FakeGitHub, post: Post) -> None:
    for number in range(220):
        github.data.add_comment(7, f"comment {number}")
    github.data.add_comment(7, OURS, BOT)
    assert post(WORSE) == "comment edited"
    assert texts(github) == [WORSE]


@pytest.mark.parametrize("fault", [{"status": 502, "body": "bad gateway"}, {"drops": True}], ids=["502", "dropped"])
def test_a_post_without_an_answer_that_was_stored_makes_no_twin(
    github: FakeGitHub, post: Post, fault: dict[str, object]
) -> None:
    github.fail(method="POST", path=COMMENTS, stored=True, **fault)
    assert post() == "comment edited"
    assert texts(github) == [RED]


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (403, "Unable to create comment because issue is locked."),
        (403, "Repository was archived so is read-only."),
        (410, "This issue was deleted"),
    ],
)
def test_locked_archived_or_gone_is_no_failure(github: FakeGitHub, post: Post, status: int, message: str) -> None:
    github.fail(method="POST", path=COMMENTS, times=9, status=status, body={"message": message})
    posted = post()
    assert posted.startswith("comment not posted: POST ")
    assert message in posted
    assert len(github.writes) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"state": "closed"}, "closed"),
        ({"head": {"sha": sha("pushed"), "ref": "topic", "repo": None}}, f"#7 is at {sha('pushed')[:12]}"),
    ],
    ids=["closed", "pushed"],
)
def test_a_pull_request_that_takes_no_comment_meanwhile(
    github: FakeGitHub, post: Post, change: dict[str, object], said: str
) -> None:
    post(RED)
    github.data.pulls[7].update(change)
    posted = post(GREEN)
    assert posted.startswith("comment not posted: ")
    assert said in posted
    assert texts(github) == [RED]


def test_a_marker_planted_by_a_person_is_left_alone(github: FakeGitHub, post: Post) -> None:
    planted = f"{MARKER}\n\nI am the bot, all is well"
    theirs = github.data.add_comment(7, planted, {"login": "mallory", "type": "User"})
    github.data.add_comment(7, planted, {"login": "github-actions[bot]x", "type": "Bot"})
    assert post() == "comment created"
    assert github.data.comments[theirs]["body"] == planted
    assert texts(github) == [RED]


def test_ours_is_found_with_the_line_ends_of_the_web_editor(github: FakeGitHub, post: Post) -> None:
    github.data.add_comment(7, OURS.replace("\n", "\r\n"), BOT)
    assert post(WORSE) == "comment edited"
    assert texts(github) == [WORSE]


def test_the_oldest_is_edited_and_its_twins_are_deleted(github: FakeGitHub, post: Post) -> None:
    first, *_ = [github.data.add_comment(7, OURS, BOT) for _ in range(3)]
    assert post(WORSE) == "comment edited"
    assert [method for method, _ in github.writes] == ["PATCH", "DELETE", "DELETE"]
    assert list(github.data.comments) == [first]
    assert texts(github) == [WORSE]


@pytest.mark.parametrize("login", ["guard[bot]", "alice"])
def test_ours_is_what_the_owner_of_the_token_wrote(github: FakeGitHub, post: Post, login: str) -> None:
    theirs = github.data.add_comment(7, OURS, BOT)
    github.data.owner = {"login": login, "type": "User"}
    assert post() == "comment created"
    assert post(WORSE) == "comment edited"
    assert [comment["body"] for comment in github.data.on(7)] == [OURS, f"{MARKER}\n\n{WORSE}"]
    assert github.data.comments[theirs]["user"] == BOT


def test_who_posts_is_not_asked_before_there_is_a_marker(github: FakeGitHub, post: Post) -> None:
    github.data.add_comment(7, "hello")
    post(GREEN, wants=False)
    assert ("POST", "/graphql") not in github.requests


@pytest.mark.parametrize("earlier", [(5001, 1), (4999, 9)])
def test_an_earlier_run_or_attempt_replaces_nothing(github: FakeGitHub, post: Post, earlier: tuple[int, int]) -> None:
    post(RED)
    assert post(GREEN, wants=False, order=earlier) == (
        "comment not posted: attempt 2 of run 5001, which is newer, has written it"
    )
    assert texts(github) == [RED]
    for later in (RUN, (5001, 3), (5002, 1)):
        assert post(WORSE, order=later) == "comment edited"


def test_a_comment_of_an_older_perfguard_is_edited(github: FakeGitHub, post: Post) -> None:
    github.data.add_comment(7, f"<!-- perfguard:v1 key=default -->\n\n{RED}", BOT)
    assert post(WORSE) == "comment edited"
    assert texts(github) == [WORSE]


def test_ours_is_deleted_between_list_and_edit(github: FakeGitHub, post: Post) -> None:
    post(RED)
    github.fail(method="PATCH", status=404, body={"message": "Not Found"})
    assert post(WORSE) == "comment edited"
    github.data.comments.clear()
    gone = github.data.add_comment(7, OURS, BOT)
    github.before["PATCH"] = lambda: github.data.comments.pop(gone, None)
    assert post(WORSE) == "comment created"
    gone = next(iter(github.data.comments))
    github.before["PATCH"] = lambda: github.data.comments.pop(gone, None)
    assert post(GREEN, wants=False).startswith("no comment: nobody has to act")


def test_a_twin_that_somebody_deleted_is_no_error(github: FakeGitHub, post: Post) -> None:
    first, *_ = [github.data.add_comment(7, OURS, BOT) for _ in range(3)]
    github.fail(method="DELETE", stored=True, status=404, body={"message": "Not Found"})
    assert post(WORSE) == "comment edited"
    assert list(github.data.comments) == [first]


PAGE = "<!DOCTYPE html><title>Sign in</title>"
UNREAD = [
    {"status": 200, "body": PAGE},
    {"status": 201, "body": "{}"},
    {"status": 200, "body": {"id": 1, "body": "another comment"}},
]


@pytest.mark.parametrize("answer", UNREAD, ids=["a page", "no comment", "another comment"])
@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_a_write_is_believed_only_when_it_is_read_back(
    github: FakeGitHub, post: Post, method: str, answer: dict[str, object]
) -> None:
    if method == "PATCH":
        github.data.add_comment(7, OURS, BOT)
    github.fail(method=method, path="comments", **answer)
    assert post(WORSE) == f"comment {'edited' if method == 'PATCH' else 'created'}"  # by the second attempt
    assert texts(github) == [WORSE]
    github.data.comments.clear()
    github.fail(method="POST", path=COMMENTS, times=2, **answer)
    with pytest.raises(GitHubError, match="check GITHUB_API_URL and the network"):
        post(RED)
    assert texts(github) == []


@given(st.text(max_size=80) | st.sampled_from([None, *(f"{before}{MARKER}{after}"
    for before in ("", " ", "> ", "x\n") for after in ("", "x", "\nx"))]))  # fmt: skip
def test_any_body_has_the_marker_or_not(body: str | None) -> None:
    found = order_in(Comment(1, body))
    assert found == (RUN if (body or "").partition("\n")[0] == MARKER else None)
