"""Ends a rank whose test hangs, or which still waits for a rank that has failed the test.

Such a rank cannot be interrupted, since it waits inside a collective. It writes its position and ends itself; the
launch then ends the others.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from perfguard.ranks.rank_files import Collective, RankExit
from perfguard.ranks.rank_group import RankGroup
from perfguard.session.watchdog import describe_step

STATUS = 3  # Exit status of a rank that ends itself: pytest's for an internal error.
_POLL_SECONDS = 0.2
GRACE_SECONDS = 5.0  # Seconds until a rank whose peer has failed ends itself.
_OTHERS_SECONDS = 10.0  # Seconds for the other ranks to write their state, before the launch ends them.
_WAITING_SECONDS = 2.0  # The same for ranks that wait for one that has failed, which writes no more.
_RUNNER = re.compile(r"[/\\](_pytest|pluggy)[/\\]")


@dataclass
class Watch:
    """Watches the tests of this rank, one after another.

    Args:
        write_exit: called with the rank's exit before the process ends.
        stderr: file descriptor for the stack of a rank that cannot even write this.
    """

    group: RankGroup
    write_exit: Callable[[RankExit], None]
    stderr: int
    _number: int = 0
    _arrived: bool = False

    @contextlib.contextmanager
    def over(self) -> Iterator[None]:
        """The body, one test up to its common end, must end within the limit."""
        self._number += 1
        self._arrived = False
        ended = threading.Event()
        main = threading.get_ident()
        thread = threading.Thread(target=self._watch, args=(main, ended), name="perfguard: watch", daemon=True)
        thread.start()
        # C code that never releases the interpreter's lock stops that thread, too.
        seconds = 60 * self.group.minutes + 2 * _OTHERS_SECONDS
        faulthandler.dump_traceback_later(seconds, exit=True, file=self.stderr)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            ended.set()
            thread.join()

    def arrive(self, failed: bool) -> None:
        """Note that this rank has ended the test, and will wait for the others.

        Args:
            failed: whether it left the test early, so that others may wait for it in a collective.
        """
        self._arrived = True
        if failed:
            self.group.store.set(f"failed-{self._number}", str(self.group.rank))

    def _watch(self, main: int, ended: threading.Event) -> None:
        store, key = self.group.store.clone(), f"failed-{self._number}"
        started, failed = time.monotonic(), 0.0
        while not ended.wait(_POLL_SECONDS):
            now = time.monotonic()
            if now - started > 60 * self.group.minutes:
                self._end(main, store, f"took longer than {self.group.minutes:g} minutes", _OTHERS_SECONDS)
            if self._arrived:
                continue
            if failed == 0.0 and store.check([key]):
                failed = now
            if failed and now - failed > GRACE_SECONDS:
                rank = int(store.get(key))
                self._end(main, store, f"rank {rank} had left the test", _WAITING_SECONDS)

    def _end(self, main: int, store: Any, cause: str, seconds: float) -> None:
        frame = sys._current_frames().get(main)
        try:
            self.write_exit(
                RankExit(
                    cause=cause,
                    step=describe_step(frame),
                    stack=_stack(frame),
                    collective=last_collective(),
                    arrived=self._arrived,
                )
            )
            keys = [f"said-{rank}" for rank in range(self.group.ranks)]
            store.set(keys[self.group.rank], "")
            until = time.monotonic() + seconds
            while time.monotonic() < until and not store.check(keys):
                time.sleep(_POLL_SECONDS)
        finally:
            os._exit(STATUS)


def last_collective() -> Collective | None:
    """The last collective that this rank has issued; None if there was none, or none was recorded."""
    from perfguard._compat.torch_distributed import issued_collectives

    try:
        entries = issued_collectives()
    except Exception:  # A missing detail must not keep the state from being written.
        return None
    if not entries:
        return None
    entry = entries[-1]
    p2p = entry.get("is_p2p", False)
    return Collective(
        number=int(entry.get("p2p_seq_id" if p2p else "collective_seq_id", 0)),
        name=str(entry.get("profiling_name", "?")).partition(":")[2] or str(entry.get("profiling_name", "?")),
        sizes=str(entry.get("input_sizes", "")),
        group=str((entry.get("process_group") or ("", ""))[1]),
        pending=not entry.get("retired", False),
    )


def _stack(frame: FrameType | None) -> str:
    """The calls of a thread below pytest's own."""
    frames = traceback.extract_stack(frame)
    last_own = max((at for at, each in enumerate(frames) if _RUNNER.search(each.filename)), default=-1)
    return "".join(traceback.format_list(frames[last_own + 1 :]))
