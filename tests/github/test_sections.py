"""One comment for the post jobs of several workflows: a section each, kept whichever of them writes when."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfguard.github import Action, Client, Posted, Pull, Rules, State, post_comment
from perfguard.github.comments import BUDGET
from perfguard.github.deciding import Drop, Merge, Mine, Rest, decide_section
from perfguard.github.identity import Ours, Section, compose_shared, digest, sections_of
from tests.github.fake import FakeGitHub
from tests.github.fake.world import BOT
from tests.github.test_comments import GREEN, RED, WORSE, later, texts
from tests.github.test_racing import COMMENTS, NEWER, OLDER, PATIENCE, Start, end, start, wait

__all__ = ["start"]  # a fixture
H200, MI300X = Rules(section="nvidia-h200"), Rules(section="amd-mi300x")


def post(client: Client, pull: Pull, state: State, rules: Rules, *bodies: str, wants: bool = True) -> Posted:
    return post_comment(client, pull, bodies, wants=wants, state=state, rules=rules)


def told(github: FakeGitHub) -> dict[str, str]:
    """Section -> text of the one shared comment."""
    (comment,) = github.world.on(7)
    found = sections_of(Ours(comment["id"], "", None, "", comment["body"]))
    return {section.name: section.text for section in found}


def test_each_workflow_keeps_its_section_and_leaves_the_others(
    github: FakeGitHub, client: Client, pull: Pull, state: State
) -> None:
    first = post(client, pull, state, H200, RED)
    second = post(client, pull, state, MI300X, WORSE)
    assert (first.action, second.action, second.comment) == (Action.CREATED, Action.EDITED, first.comment)
    assert told(github) == {"amd-mi300x": WORSE, "nvidia-h200": RED}
    green = post(client, pull, later(state), H200, GREEN, wants=False)
    assert (green.action, green.comment, green.tier) == (Action.EDITED, first.comment, 1)
    assert told(github) == {"amd-mi300x": WORSE, "nvidia-h200": GREEN}
    before = len(github.writes)
    assert post(client, pull, later(state), MI300X, WORSE).action is Action.SILENT
    github.world.add_run(later(state).run)
    assert post(client, pull, state, H200, RED).reason.endswith("is newer and has posted")
    assert len(github.writes) == before


def test_a_green_section_starts_no_comment_and_joins_one(
    github: FakeGitHub, client: Client, pull: Pull, state: State
) -> None:
    assert post(client, pull, state, H200, GREEN, wants=False).action is Action.SILENT
    assert github.writes == []
    post(client, pull, state, MI300X, RED)
    post(client, pull, state, H200, GREEN, wants=False)
    assert told(github) == {"amd-mi300x": RED, "nvidia-h200": GREEN}


def test_a_comment_of_the_jobs_own_is_another_one(github: FakeGitHub, client: Client, pull: Pull, state: State) -> None:
    post(client, pull, state, Rules(), RED)
    post(client, pull, state, H200, WORSE)
    assert len(github.world.on(7)) == 2
    assert texts(github) == [RED]
    assert post(client, pull, later(state), Rules(), GREEN, wants=False).action is Action.EDITED
    assert texts(github) == [GREEN]


def test_a_section_that_a_person_spoilt_is_written_again(
    github: FakeGitHub, client: Client, pull: Pull, state: State
) -> None:
    post(client, pull, state, H200, RED)
    post(client, pull, state, MI300X, WORSE)
    (comment,) = github.world.on(7)
    for spoil in ("slower", "perfguard:section nvidia-h200 ", "perfguard:section-end", "section amd"):
        comment["body"] = comment["body"].replace(spoil, "x", 1).replace("\n", "\r\n")
        before = len(github.writes)
        post(client, pull, state, MI300X, WORSE)
        post(client, pull, state, H200, RED)
        assert len(github.writes) > before
        assert told(github) == {"amd-mi300x": WORSE, "nvidia-h200": RED}


def test_every_section_finds_room(github: FakeGitHub, client: Client, pull: Pull, state: State) -> None:
    lanes = [f"lane-{number}" for number in range(12)]
    for run in (state, later(state)):
        for lane in lanes:
            sizes = [f"{lane} {run.run} " + "x" * (size - 20) for size in (50_000, 20_000, 9_000, 4_000, 2_000, 600)]
            posted = post(client, pull, run, Rules(section=lane), *sizes)
            assert posted.action in (Action.CREATED, Action.EDITED)
    assert sorted(told(github)) == sorted(lanes)
    assert len(github.world.on(7)[0]["body"].encode()) <= BUDGET
    assert min(len(text) for text in told(github).values()) > 500


def test_a_section_without_room_says_so(github: FakeGitHub, client: Client, pull: Pull, state: State) -> None:
    post(client, pull, state, H200, "x" * 59_000)
    posted = post(client, pull, state, MI300X, "y" * 2_000)
    assert posted.action is Action.FAILED
    assert "give some of the workflows another --key" in posted.reason
    assert list(told(github)) == ["nvidia-h200"]


def test_a_section_that_is_always_written_over_gives_up(
    github: FakeGitHub, client: Client, pull: Pull, state: State
) -> None:
    post(client, pull, state, MI300X, WORSE)
    (comment,) = github.world.on(7)
    body = comment["body"]
    github.fail(method="PATCH", times=99, after=lambda: comment.update(body=body))
    posted = post(client, pull, state, H200, RED)
    assert "written over 5 times" in posted.warnings[0]
    assert github.writes.count(("PATCH", f"/repos/o/r/issues/comments/{comment['id']}")) == 5


@pytest.mark.parametrize("lag", [0, 1])
def test_two_workflows_that_both_see_no_comment(github: FakeGitHub, start: Start, lag: int) -> None:
    github.world.list_lag = lag
    both = threading.Barrier(2)
    for token in (OLDER, NEWER):
        github.fail(method="GET", path=COMMENTS, token=token, after=lambda: both.wait(PATIENCE))
    jobs = [start(OLDER, "nvidia-h200"), start(NEWER, "amd-mi300x")]
    assert Action.FAILED not in [end(job).action for job in jobs]
    assert github.requests.count(("POST", "/repos/o/r/issues/7/comments")) == 2
    assert told(github) == {"amd-mi300x": "by the newer run", "nvidia-h200": "by the older run"}


def test_a_section_that_another_workflow_wrote_over_comes_again(github: FakeGitHub, start: Start) -> None:
    # Both have looked before either writes; the second write knows nothing of the first.
    end(start(OLDER, "nvidia-b200"))
    both, first_wrote = threading.Barrier(2), threading.Event()
    for token in (OLDER, NEWER):
        github.fail(method="GET", path=COMMENTS, token=token, after=lambda: both.wait(PATIENCE))
    github.fail(method="PATCH", token=OLDER, after=first_wrote.set)
    github.fail(method="PATCH", token=NEWER, before=wait(first_wrote))
    jobs = [start(OLDER, "nvidia-h200"), start(NEWER, "amd-mi300x")]
    assert [end(job).action for job in jobs] == [Action.EDITED, Action.EDITED]
    assert told(github) == {
        "amd-mi300x": "by the newer run", "nvidia-b200": "by the older run", "nvidia-h200": "by the older run",
    }  # fmt: skip


def section(name: str, run: int, text: str = "text") -> Section:
    return Section(name, State(run, 1, "a" * 40, [], True, 1, digest(text), digest(text)), text)


def shared(number: int, *sections: Section) -> Ours:
    return Ours(number, "", None, "", compose_shared("default", sections))


def test_a_twin_goes_only_once_its_sections_stand_in_the_lowest() -> None:
    mine = Mine((5, 1), digest("mine"), True)
    low, twin = shared(1, section("a", 5, "mine")), shared(2, section("b", 7))
    step = decide_section([twin, low], "a", mine)
    assert step == Merge(low, [section("a", 5, "mine"), section("b", 7)], own=False)
    assert decide_section([twin, shared(1, *step.sections)], "a", mine) == Drop(twin)
    old = shared(2, section("b", 6))
    both = shared(1, *step.sections)
    assert decide_section([both, old], "a", mine) == Drop(old)
    assert isinstance(decide_section([both], "a", mine), Rest)


@given(st.dictionaries(st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,9}", fullmatch=True), st.text(), max_size=5))
def test_sections_come_back_as_they_were_composed(texts_of: dict[str, str]) -> None:
    clean = {name: text.replace("\r", "").replace("<!--", "").strip("\n") for name, text in texts_of.items()}
    given_ = [section(name, 5, text) for name, text in sorted(clean.items())]
    body = compose_shared("default", given_)
    assert sections_of(Ours(1, "", None, "", body)) == given_
    assert body.splitlines()[0] == "<!-- perfguard:v1 key=default shared -->"


def test_whose_a_shared_comment_is(github: FakeGitHub, client: Client, pull: Pull, state: State) -> None:
    planted = compose_shared("default", [section("nvidia-h200", 9_999)])
    github.world.add_comment(7, planted, {"login": "mallory", "type": "User"})
    assert post(client, pull, state, H200, RED).action is Action.CREATED
    ours = [one for one in github.world.on(7) if one["user"] == BOT]
    assert len(ours) == 1
