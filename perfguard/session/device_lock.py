"""Locks a device, so that one perfguard at a time measures times on it. Each device of the machine has a lock of the
operating system. Runs that read no time take none.

The lock is released when the process that holds it ends, for whatever reason. A file beside it names the holder, for
waiting processes. Fresh processes and xdist workers measure under the lock of the process that started them.
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from filelock import FileLock, Timeout

from perfguard.model.errors import DeviceError

POLL_SECONDS = 0.2
FOLDER = "perfguard-locks"


class DeviceLock:
    """The lock of one device.

    Args:
        key: `Device.key`, the same in every process of the machine.
        folder: folder of the locks; by default in the system's temporary folder, shared by all users.
    """

    def __init__(self, key: str, folder: Path | None = None) -> None:
        self.key = key
        self._folder = folder or Path(tempfile.gettempdir()) / FOLDER
        name = re.sub(r"[^\w.-]+", "-", key)
        self._lock_path = self._folder / f"{name}.lock"
        self._holder_path = self._folder / f"{name}.txt"
        self._lock: FileLock | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def acquire(self, minutes: float, tell: Callable[[str], None]) -> None:
        """Take the lock, as `acquire_any` does."""
        acquire_any([self], minutes, tell)

    def try_acquire(self) -> bool:
        """Take the lock if it is free, and return whether it is held now.

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
        """Release the lock, if held. Its file stays, since waiting processes have it open."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self._holder_path.unlink()
            self._lock.release()
            self._lock = None

    def holder(self) -> str:
        """The process that holds the lock, in words; empty if it is not recorded."""
        try:
            return self._holder_path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def _make_folder(self) -> None:
        # No sticky bit: with it, Linux keeps one user from opening the lock file of another.
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):
                self._folder.chmod(0o777)

    def _write_holder(self) -> None:
        """Write by rename, which can replace another user's file and never follows a link."""
        since = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])[:200]
        text = f"process {os.getpid()} ({command}) since {since}"
        with contextlib.suppress(OSError):  # Only waiting processes need the file.
            handle, temporary = tempfile.mkstemp(dir=self._folder)
            with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
                os.fchmod(handle, 0o644)
                file.write(text)
            os.replace(temporary, self._holder_path)


def acquire_any(locks: Sequence[DeviceLock], minutes: float, tell: Callable[[str], None]) -> DeviceLock:
    """Take the first lock that is free. If other processes hold all of them, report that once through `tell` and wait.

    Args:
        minutes: longest wait.

    Raises:
        DeviceError: other processes still hold all of them after that, or no lock can be made.
    """
    end = time.monotonic() + 60 * minutes
    is_announced = False
    while True:
        for lock in locks:
            if lock.try_acquire():
                return lock
        key, who = ", ".join(lock.key for lock in locks), locks[0].holder() or "another process"
        if time.monotonic() >= end:
            raise DeviceError(
                f"device {key}: still in use by {who} after {minutes:g} minutes; wait for it to end, or raise "
                "lock_minutes in [tool.perfguard]"
            )
        if not is_announced:
            tell(f"device {key} is in use by {who}; waiting up to {minutes:g} minutes")
            is_announced = True
        time.sleep(POLL_SECONDS)
