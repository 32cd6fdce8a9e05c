"""Instructions that the host retires in user mode, from Linux' performance counters, if the machine has them."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import platform
import struct
from collections.abc import Callable
from pathlib import Path

# Numbers of linux/perf_event.h and of the architectures' system call tables.
_SYSCALLS = {"x86_64": 298, "aarch64": 241}
HARDWARE_INSTRUCTIONS = (0, 1)  # type, configuration
_ATTRIBUTE_BYTES = 128
_DISABLED, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 0, 1 << 5, 1 << 6
_TIMES_TOO = 1 << 0 | 1 << 1  # the times enabled and running, which differ if the counter was shared
_ENABLE, _DISABLE, _RESET = 0x2400, 0x2401, 0x2403

Event = tuple[int, int]


class Counters:
    """One counter for each of the given threads of this process.

    Args:
        threads: their ids.

    Raises:
        OSError: the machine, the container or the kernel's settings do not allow counters.
    """

    def __init__(self, threads: list[int], event: Event = HARDWARE_INSTRUCTIONS) -> None:
        self._files: list[int] = []
        try:
            for thread in threads:
                self._files.append(_open(thread, event))
        except OSError:
            self.close()
            raise

    def count(self, call: Callable[[], object]) -> int | None:
        """The count of `call`, summed over all threads; None if a counter was shared with others meanwhile."""
        for file in self._files:
            fcntl.ioctl(file, _RESET, 0)
        for file in self._files:
            fcntl.ioctl(file, _ENABLE, 0)
        try:
            call()
        finally:
            for file in self._files:
                fcntl.ioctl(file, _DISABLE, 0)
        read = [struct.unpack("QQQ", os.read(file, 24)) for file in self._files]
        shared = any(running < enabled for _, enabled, running in read)
        return None if shared else sum(value for value, _, _ in read)

    def close(self) -> None:
        """Close the counters."""
        while self._files:
            os.close(self._files.pop())


def threads_of_this_process() -> list[int]:
    """Ids of all threads, for example autograd's."""
    return sorted(int(path.name) for path in Path("/proc/self/task").iterdir())


@functools.cache
def available() -> bool:
    """Whether this process may count instructions. Most virtual machines and containers do not allow it."""
    try:
        Counters([0]).close()
    except OSError:
        return False
    return True


def _open(thread: int, event: Event) -> int:
    number = _SYSCALLS.get(platform.machine()) if platform.system() == "Linux" else None
    if number is None:
        raise OSError(f"{platform.system()} {platform.machine()}: no performance counters known here")
    attribute = bytearray(_ATTRIBUTE_BYTES)
    flags = _DISABLED | _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR
    # type, size, configuration, sample period, sample type, read format, flags
    struct.pack_into("IIQQQQQ", attribute, 0, event[0], _ATTRIBUTE_BYTES, event[1], 0, 0, _TIMES_TOO, flags)
    library = ctypes.CDLL(None, use_errno=True)
    buffer = (ctypes.c_char * _ATTRIBUTE_BYTES).from_buffer(attribute)
    file: int = library.syscall(number, buffer, thread, -1, -1, 0)
    if file < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"perf_event_open: {os.strerror(code)}")
    return file
