"""One perfguard at a time times on a device: a lock of the operating system for each device of the machine. Runs that
read no time take none.

The lock goes with the process that holds it, however that ends. Who holds it is written beside it, for those who
wait. Fresh processes and xdist workers measure under the lock of the process that started them.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import msgspec
from filelock import FileLock, Timeout

from perfguard.errors import DeviceError

POLL_SECONDS = 0.2
FOLDER = "perfguard-locks"


class Holder(msgspec.Struct, frozen=True):
    """Who holds a lock: process, command line, since when (ISO, UTC)."""

    pid: int
    command: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command}) since {self.since}"


class DeviceLock:
    """The lock of one device.

    Args:
        key: `Device.key`, the same in every process of the machine.
        folder: where locks lie; by default in the system's temporary folder, shared by all users.
    """

    def __init__(self, key: str, folder: Path | None = None) -> None:
        self.key = key
        self._folder = folder or Path(tempfile.gettempdir()) / FOLDER
        name = re.sub(r"[^\w.-]+", "-", key)
        self._lock_path = self._folder / f"{name}.lock"
        self._holder_path = self._folder / f"{name}.json"
        self._lock: FileLock | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def acquire(self, minutes: float, tell: Callable[[str], None]) -> None:
        """Take the lock; while another process has it, say so once through `tell` and wait.

        Args:
            minutes: how long to wait at most.

        Raises:
            DeviceError: still held by another process then, or no lock can be made.
        """
        end = time.monotonic() + 60 * minutes
        told = False
        while not self.try_acquire():
            who = self.holder() or "another process"
            if time.monotonic() >= end:
                raise DeviceError(
                    f"device {self.key}: still in use by {who} after {minutes:g} minutes; wait for it to end, or "
                    "raise lock_minutes in [tool.perfguard]"
                )
            if not told:
                tell(f"device {self.key} is in use by {who}; waiting up to {minutes:g} minutes")
                told = True
            time.sleep(POLL_SECONDS)

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it; whether it is held now.

        Raises:
            DeviceError: no lock can be made here.
        """
        if self._lock is not None:
            return True
        try:
            self._make_folder()
            lock = FileLock(self._lock_path, timeout=0, mode=0o666)
            lock.acquire()
        except Timeout:
            return False
        except OSError as error:
            raise DeviceError(
                f"device {self.key}: cannot be locked ({error}); make {self._folder} writable, or set TMPDIR"
            ) from error
        self._lock = lock
        self._write_holder()
        return True

    def release(self) -> None:
        """Give the lock back, if held. Its file stays: whoever waits has it open."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self._holder_path.unlink()
            self._lock.release()
            self._lock = None

    def holder(self) -> Holder | None:
        """Who holds the lock, as far as it was written down."""
        try:
            return msgspec.json.decode(self._holder_path.read_bytes(), type=Holder)
        except (OSError, msgspec.MsgspecError):
            return None

    def _make_folder(self) -> None:
        # Without the sticky bit: under it Linux keeps one user from opening the lock file of another.
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):
                self._folder.chmod(0o777)

    def _write_holder(self) -> None:
        """By rename, so that it can replace another user's file and never follows a link."""
        since = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        holder = Holder(os.getpid(), shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])[:200], since)
        with contextlib.suppress(OSError):  # only those who wait would miss it
            handle, temporary = tempfile.mkstemp(dir=self._folder)
            with os.fdopen(handle, "wb") as file:
                os.fchmod(handle, 0o644)
                file.write(msgspec.json.encode(holder))
            os.replace(temporary, self._holder_path)
