"""The lock of a device: one holder at a time, named while others wait, free after any end of its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perfguard.model.errors import DeviceError
from perfguard.session.device_lock import DeviceLock

HOLD = """
import sys, time
from pathlib import Path
from perfguard.session.device_lock import DeviceLock
lock = DeviceLock("gpu-1", Path(sys.argv[1]))
assert lock.try_acquire()
print("held", flush=True)
time.sleep(600)
"""


def never(text: str) -> None:
    raise AssertionError(text)


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    first, second = DeviceLock("gpu-1", tmp_path), DeviceLock("gpu-1", tmp_path)
    first.acquire(1, never)
    first.acquire(1, never)  # already held
    assert not second.try_acquire()
    DeviceLock("gpu-2", tmp_path).acquire(1, never)  # another device
    first.release()
    assert second.try_acquire()
    second.release()
    second.release()
    with first:
        assert first.try_acquire()
    assert second.try_acquire()


def test_who_waits_is_told_who_holds_it_and_gives_up(tmp_path: Path) -> None:
    said: list[str] = []
    with DeviceLock("gpu/1", tmp_path) as lock:
        lock.acquire(1, never)
        with pytest.raises(DeviceError, match=rf"^device gpu/1: still in use by process {os.getpid()} .*lock_minutes"):
            DeviceLock("gpu/1", tmp_path).acquire(0.005, said.append)
    assert len(said) == 1
    assert f"in use by process {os.getpid()} (" in said[0]
    assert "waiting up to 0.005 minutes" in said[0]
    assert lock.holder() == ""


def test_a_killed_process_leaves_the_device_unlocked(tmp_path: Path) -> None:
    line = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        lock = DeviceLock("gpu-1", tmp_path)
        assert not lock.try_acquire()
        assert lock.holder().startswith(f"process {process.pid} (")
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert lock.try_acquire()


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DeviceError, match=r"cannot be locked.*TMPDIR"):
        DeviceLock("gpu-1", tmp_path / "file" / "locks").try_acquire()


def test_other_users_may_take_the_lock(tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    with DeviceLock("gpu-1", folder) as lock:
        lock.acquire(1, never)
        modes = {path.name: path.stat().st_mode & 0o777 for path in [folder, *folder.iterdir()]}
    assert modes == {"locks": 0o777, "gpu-1.lock": 0o666, "gpu-1.txt": 0o644}
