"""The ranks of a call: alone, of a layout, in lock step, and in a group that the test made itself."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from perfguard._compat.torch_distributed import fake_store
from perfguard.model.call import ALONE, Call
from perfguard.model.errors import UsageError
from perfguard.ranks.in_rank import RankGuard
from perfguard.ranks.rank_group import Unmarked, launch_environment, layout_of, local_rank, rank_here, ranks_here

CALL = Call(abs, (1,), abs)


def test_a_call_of_one_process_is_alone_until_its_test_begins_a_group() -> None:
    ranks = Unmarked("suite.py::test")
    assert ranks.given(CALL).ranks is CALL.ranks is ALONE
    for backend, store, has_data in (("gloo", dist.HashStore(), True), ("fake", fake_store(), False)):
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
        call = ranks.given(CALL)
        dist.destroy_process_group()
        assert (call.ranks.alone, call.ranks.in_step, call.ranks.has_data, call.mesh) == (False, False, has_data, {})
        assert call.hard is CALL.hard
    assert ranks.given(CALL).ranks.alone
    with pytest.raises(UsageError, match=r"^perfguard\.mesh\(dp=2\): suite\.py::test runs on one rank; mark it @"):
        ranks.mesh({"dp": 2})


def test_a_layout_times_and_derives_nothing() -> None:
    with layout_of(4) as layout:
        layout.mesh({"dp": 2, "tp": 2})
        call = layout.given(CALL)
    assert (call.ranks.alone, call.ranks.in_step, call.ranks.has_data) == (False, False, False)
    assert (call.timed, call.hard, call.mesh) == (False, None, {"dp": 2, "tp": 2})


def test_a_function_in_lock_step_is_checked_as_any_call_and_a_decision_is_that_of_all() -> None:
    guard = RankGuard(0, 1, "cpu", dist.HashStore(), 1.0)
    call = guard.given(CALL)
    assert (call.ranks.alone, call.ranks.in_step, call.ranks.has_data) == (False, True, True)
    assert (call.hard, call.mesh) == (None, {"ranks": 1})
    assert call.ranks.check(call) is None
    assert (call.on_any_rank(True), call.on_any_rank(False)) == (True, False)


def test_a_rank_finds_its_place_by_what_a_launch_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {})
    assert (ranks_here(), rank_here(), local_rank()) == (0, 0, 0)
    monkeypatch.setattr("os.environ", launch_environment(2, 3, "localhost", 29500))
    assert (ranks_here(), rank_here(), local_rank()) == (3, 2, 2)
