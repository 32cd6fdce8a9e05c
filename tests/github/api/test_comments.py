"""The rows of the acceptance table that are about our one comment: created, edited, left alone, never doubled."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perfguard.github.api.client import Client
from perfguard.github.api.comment_identity import Comment, Identity, Ours, State, User, compose, digest, marker
from perfguard.github.api.comments import BUDGET, Action, Rules, post_comment
from perfguard.github.api.pulls import Pull
from perfguard.model.errors import UsageError
from tests.github.api.fake import FakeGitHub
from tests.github.api.fake.world import BOT, sha

RED = "### perfguard: 1 case slower\n\n| Lane | Case |\n|---|---|\n| h200 | a |"
WORSE = "### perfguard: 2 cases slower"
GREEN = "### perfguard: no change"


def later(state: State) -> State:
    return State(run=state.run + 1, attempt=1, head=state.head, lanes=state.lanes)


def texts(github: FakeGitHub, key: str = "default") -> list[str]:
    """The text of every comment of ours on the pull request."""
    return [ours.text for ours in parsed(github, key)]


def parsed(github: FakeGitHub, key: str = "default") -> list[Ours]:
    comments = [
        Comment(one["id"], one["body"], User(one["user"]["login"], one["user"]["type"])) for one in github.world.on(7)
    ]
    found = [Identity(key, BOT["login"]).ours(comment) for comment in comments]
    return [ours for ours in found if ours is not None]


def test_row_04_first_run_creates_exactly_one_comment(
    github: FakeGitHub, client: Client, pull: Pull, state: State
) -> None:
    posted = post_comment(client, pull, [RED], wants=True, state=state)
    assert posted.action is Action.CREATED
    assert texts(github) == [RED]
    written = parsed(github)[0].state
    assert written is not None
    assert (written.run, written.attempt, written.head) == (5001, 1, sha("head"))
    assert written.hash == digest(RED)
    assert github.writes == [("POST", "/repos/o/r/issues/7/comments")]


def test_nobody_has_to_act_and_there_is_none(github: FakeGitHub, client: Client, pull: Pull, state: State) -> None:
    posted = post_comment(client, pull, [GREEN], wants=False, state=state)
    assert posted.action is Action.SILENT
    assert github.writes == []
    assert github.world.comments == {}


def test_row_05_the_same_result_again_writes_nothing(
    github: FakeGitHub, client: Client, pull: Pull, state: State
) -> None:
    post_comment(client, pull, [RED], wants=True, state=state)
    before = len(github.writes)
    posted = post_comment(client, pull, [RED], wants=True, state=later(state))
    assert posted.action is Action.SILENT
    assert "says so already" in posted.reason
    assert len(github.writes) == before


def test_row_06_a_new_result_edits_the_same_comment(
    github: FakeGitHub, client: Client, pull: Pull, state: State
) -> None:
    post_comment(client, pull, [RED], wants=True, state=state)
    (first,) = github.world.comments
    second = post_comment(client, pull, [GREEN], wants=False, state=later(state))
    assert (second.action, list(github.world.comments)) == (Action.EDITED, [first])
    assert texts(github) == [GREEN]


def test_row_07_ours_on_the_third_page_is_edited(github: FakeGitHub, client: Client, pull: Pull, state: State) -> None:
    for number in range(220):
        github.world.add_comment(7, f"comment {number}")
    github.world.add_comment(7, compose("default", state, RED), BOT)
    for number in range(29):
        github.world.add_comment(7, f"comment {number}")
    posted = post_comment(client, pull, [WORSE], wants=True, state=later(state))
    assert posted.action is Action.EDITED
    assert texts(github) == [WORSE]


def test_row_10_a_post_that_timed_out_yet_was_stored_makes_no_twin(
    github: FakeGitHub, client: Client, pull: Pull, state: State
) -> None:
    for fault in ({"status": 502, "body": "bad gateway"}, {"drops": True}):
        github.world.comments.clear()
        github.fail(method="POST", path="/comments$", stored=True, **fault)
        posted = post_comment(client, pull, [RED], wants=True, state=state)
        assert posted.action is Action.CREATED
        assert texts(github) == [RED]


def test_a_stored_post_that_the_list_does_not_show_yet_ends_as_one(
    github: FakeGitHub, client: Client, pull: Pull, state: State
) -> None:
    github.world.list_lag = 1
    github.fail(method="POST", path="/comments$", stored=True, status=504)
    post_comment(client, pull, [RED], wants=True, state=state)
    assert texts(github) == [RED]


def test_a_list_that_lags_behind_a_create_makes_no_twin(
    github: FakeGitHub, client: Client, pull: Pull, state: State
) -> None:
    github.world.list_lag = 3
    assert post_comment(client, pull, [RED], wants=True, state=state).action is Action.CREATED
    assert len(github.world.comments) == 1


def test_row_11_ours_vanishes_before_the_edit_and_is_created_once(
    github: FakeGitHub, client: Client, pull: Pull, state: State
) -> None:
    post_comment(client, pull, [RED], wants=True, state=state)
    (first,) = github.world.comments
    github.fail(method="PATCH", before=lambda: github.world.comments.pop(first))
    second = post_comment(client, pull, [WORSE], wants=True, state=later(state))
    assert second.action is Action.CREATED
    assert first not in github.world.comments
    assert texts(github) == [WORSE]


def test_ours_was_deleted_and_comes_again_only_when_somebody_has_to_act(
    github: FakeGitHub, client: Client, pull: Pull, state: State
) -> None:
    post_comment(client, pull, [RED], wants=True, state=state)
    github.world.comments.clear()
    assert post_comment(client, pull, [GREEN], wants=False, state=later(state)).action is Action.SILENT
    assert texts(github) == []
    assert post_comment(client, pull, [WORSE], wants=True, state=later(state)).action is Action.CREATED


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (403, "Unable to create comment because issue is locked."),
        (403, "Repository was archived so is read-only."),
        (410, "This issue was deleted"),
    ],
)
def test_row_12_locked_archived_gone(
    github: FakeGitHub, client: Client, pull: Pull, state: State, status: int, message: str
) -> None:
    github.fail(method="POST", path="/comments$", times=9, status=status, body={"message": message})
    posted = post_comment(client, pull, [RED], wants=True, state=state)
    assert posted.action is Action.SKIPPED
    assert message in posted.reason
    assert len(github.writes) == 1


def test_row_12_a_locked_conversation_still_gets_its_edit(
    github: FakeGitHub, client: Client, pull: Pull, state: State
) -> None:
    post_comment(client, pull, [RED], wants=True, state=state)
    github.world.pulls[7]["locked"] = True
    assert post_comment(client, pull, [GREEN], wants=False, state=later(state)).action is Action.EDITED
    assert texts(github) == [GREEN]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"state": "closed"}, "closed"),
        ({"labels": [{"name": "perfguard:mute"}]}, "perfguard:mute"),
        ({"draft": True}, "draft"),
    ],
)
def test_row_13_closed_muted_or_draft_meanwhile(
    github: FakeGitHub, client: Client, pull: Pull, state: State, change: dict[str, object], said: str
) -> None:
    github.world.pulls[7].update(change)
    posted = post_comment(client, pull, [RED], wants=True, state=state, rules=Rules(drafts=False))
    assert posted.action is Action.SKIPPED
    assert said in posted.reason
    assert github.writes == []


def test_row_14_a_push_between_finding_and_writing(
    github: FakeGitHub, client: Client, pull: Pull, state: State
) -> None:
    post_comment(client, pull, [RED], wants=True, state=state)
    github.world.pulls[7]["head"]["sha"] = sha("pushed")
    posted = post_comment(client, pull, [GREEN], wants=False, state=later(state))
    assert posted.action is Action.SKIPPED
    assert sha("head")[:12] in posted.reason
    assert sha("pushed")[:12] in posted.reason
    assert texts(github) == [RED]


def test_row_16_the_largest_body_within_the_budget_is_taken(
    github: FakeGitHub, client: Client, pull: Pull, state: State
) -> None:
    bodies = ["all " * 50_000, "x" * BUDGET, "y" * (BUDGET - 3_000), "z"]
    posted = post_comment(client, pull, bodies, wants=True, state=state)
    assert posted.action is Action.CREATED
    assert texts(github) == [bodies[2]]
    assert post_comment(client, pull, bodies, wants=True, state=later(state)).action is Action.SILENT


def test_another_result_is_written_although_its_smallest_form_is_the_same(
    github: FakeGitHub, client: Client, pull: Pull, state: State
) -> None:
    post_comment(client, pull, ["x" * BUDGET, "2 slower"], wants=True, state=state)
    posted = post_comment(client, pull, ["2 slower, these two", "2 slower"], wants=True, state=later(state))
    assert posted.action is Action.EDITED
    assert texts(github) == ["2 slower, these two"]


def test_row_17_too_long_all_the_same_takes_the_next_smaller_once(
    github: FakeGitHub, client: Client, pull: Pull, state: State
) -> None:
    github.world.most_characters = 5_000
    posted = post_comment(client, pull, ["a" * 9_000, "b" * 900, "c"], wants=True, state=state)
    assert posted.action is Action.CREATED
    assert texts(github) == ["b" * 900]
    github.world.most_characters = 500
    posted = post_comment(client, pull, ["a" * 9_001, "b" * 901, "c"], wants=True, state=later(state))
    assert posted.action is Action.FAILED
    assert "too long (maximum is 500 characters)" in posted.reason
    assert texts(github) == ["b" * 900]


def test_row_18_the_budget_counts_bytes_and_splits_no_character(
    github: FakeGitHub, client: Client, pull: Pull, state: State
) -> None:
    bodies = ["🔥核" * 10_000, "🔥核" * 8_000]  # 70,000 and 56,000 bytes, of 20,000 and 16,000 characters
    post_comment(client, pull, bodies, wants=True, state=state)
    assert texts(github) == [bodies[1]]
    assert max(len(one["body"].encode()) for one in github.world.on(7)) <= BUDGET


def test_a_smallest_body_beyond_the_budget_is_not_cut(
    github: FakeGitHub, client: Client, pull: Pull, state: State
) -> None:
    posted = post_comment(client, pull, ["x" * BUDGET], wants=True, state=state)
    assert posted.action is Action.FAILED
    assert "60,000 bytes" in posted.reason
    assert github.writes == []


def test_row_42_a_marker_planted_by_a_person_is_left_alone(
    github: FakeGitHub, client: Client, pull: Pull, state: State
) -> None:
    planted = f"{marker('default')}\nI am the bot, all is well"
    theirs = github.world.add_comment(7, planted, {"login": "mallory", "type": "User"})
    github.world.add_comment(7, planted, {"login": "github-actions[bot]x", "type": "Bot"})
    posted = post_comment(client, pull, [RED], wants=True, state=state)
    assert posted.action is Action.CREATED
    assert github.world.comments[theirs]["body"] == planted
    assert texts(github) == [RED]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda body: body.replace("slower", "faster"),
        lambda body: body.replace("\n", "\r\n") + "\r\nedited",
        lambda body: body.replace("perfguard:state ", "perfguard:state AAAA"),
        lambda body: marker("default") + "\nall gone",
        lambda body: marker("default"),
    ],
    ids=["text", "crlf", "state", "state and text", "all"],
)
def test_row_42_ours_edited_by_a_person_is_written_again(
    github: FakeGitHub, client: Client, pull: Pull, state: State, spoil: Callable[[str], str]
) -> None:
    post_comment(client, pull, [RED], wants=True, state=state)
    (comment,) = github.world.comments.values()
    comment["body"] = spoil(comment["body"])
    assert post_comment(client, pull, [RED], wants=True, state=later(state)).action is Action.EDITED
    assert texts(github) == [RED]


@pytest.mark.parametrize("run", [5002, 2**62])
def test_a_run_that_github_does_not_know_stops_no_update(
    github: FakeGitHub, client: Client, pull: Pull, state: State, run: int
) -> None:
    """Whoever may edit our comment can make it claim any run."""
    post_comment(client, pull, [GREEN], wants=True, state=State(run, 1, state.head, lanes=state.lanes))
    assert post_comment(client, pull, [RED], wants=True, state=state).action is Action.EDITED
    assert texts(github) == [RED]
    github.world.add_run(5003)
    post_comment(client, pull, [GREEN], wants=True, state=State(5003, 1, state.head, lanes=state.lanes))
    assert post_comment(client, pull, [RED], wants=True, state=state).action is Action.SILENT
    assert texts(github) == [GREEN]


def test_line_ends_of_the_web_editor_are_no_edit(github: FakeGitHub, client: Client, pull: Pull, state: State) -> None:
    post_comment(client, pull, [RED], wants=True, state=state)
    (comment,) = github.world.comments.values()
    comment["body"] = comment["body"].replace("\n", "\r\n")
    assert post_comment(client, pull, [RED], wants=True, state=later(state)).action is Action.SILENT


def test_row_43_two_configurations_have_two_comments(
    github: FakeGitHub, client: Client, pull: Pull, state: State
) -> None:
    post_comment(client, pull, [RED], wants=True, state=state, rules=Rules(key="nightly"))
    post_comment(client, pull, [WORSE], wants=True, state=state)
    post_comment(client, pull, [GREEN], wants=False, state=later(state), rules=Rules(key="nightly"))
    assert texts(github, "nightly") == [GREEN]
    assert texts(github) == [WORSE]
    with pytest.raises(UsageError, match="key 'A b'"):
        post_comment(client, pull, [RED], wants=True, state=state, rules=Rules(key="A b"))


def test_another_login_is_told_by_the_api_or_by_the_rules(
    github: FakeGitHub, open_: Callable[..., Client], pull: Pull, state: State
) -> None:
    app = {"login": "guard-app[bot]", "type": "Bot"}
    github.world.viewers["ghs_app"] = app
    github.world.tokens["ghs_app"] = next(iter(github.world.tokens.values()))
    post_comment(open_("ghs_app"), pull, [RED], wants=True, state=state)
    assert post_comment(open_("ghs_app"), pull, [WORSE], wants=True, state=later(state)).action is Action.EDITED
    github.fail(method="POST", path="graphql", times=99, status=404, body={"message": "Not Found"})
    rules = Rules(author="guard-app[bot]")
    assert post_comment(open_("ghs_app"), pull, [RED], wants=True, state=later(state), rules=rules).action is (
        Action.EDITED
    )
    assert len(github.world.on(7)) == 1


def test_a_login_that_nobody_recognises_makes_one_comment_a_run_not_twelve(
    github: FakeGitHub, open_: Callable[..., Client], pull: Pull, state: State
) -> None:
    github.world.viewers["ghs_app"] = {"login": "odd", "type": "User"}
    github.world.tokens["ghs_app"] = next(iter(github.world.tokens.values()))
    github.fail(method="POST", path="graphql", times=99, status=404, body={"message": "Not Found"})
    assert post_comment(open_("ghs_app"), pull, [RED], wants=True, state=state).action is Action.CREATED
    assert len(github.world.on(7)) == 1


def test_twins_are_deleted_once_the_lowest_id_says_it(
    github: FakeGitHub, client: Client, pull: Pull, state: State
) -> None:
    for _ in range(3):
        github.world.add_comment(7, compose("default", state, "old"), BOT)
    post_comment(client, pull, [RED], wants=True, state=later(state))
    assert [method for method, _ in github.writes] == ["PATCH", "DELETE", "DELETE"]
    assert texts(github) == [RED]


def test_a_comment_that_was_written_is_told_so_though_it_cannot_be_read_back(
    github: FakeGitHub, client: Client, pull: Pull, state: State
) -> None:
    github.fail(method="GET", path="/issues/", skip=1, times=99, status=503, body="")
    posted = post_comment(client, pull, [RED], wants=True, state=state)
    assert posted.action is Action.CREATED
    assert "503" in posted.warnings[0]
    assert texts(github) == [RED]


def test_a_twin_that_cannot_be_deleted_is_a_warning(
    github: FakeGitHub, client: Client, pull: Pull, state: State
) -> None:
    for _ in range(2):
        github.world.add_comment(7, compose("default", state, "old"), BOT)
    github.fail(method="DELETE", status=403, body={"message": "Must have admin rights to Repository."})
    posted = post_comment(client, pull, [RED], wants=True, state=later(state))
    assert posted.action is Action.EDITED
    assert "could not be deleted" in posted.warnings[0]
    assert texts(github) == [RED, "old"]
