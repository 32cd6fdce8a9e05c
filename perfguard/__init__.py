"""perfguard: a guard for GPU-kernel performance and correctness, as a pytest plugin and a command line."""

from perfguard.call import Hard, Tolerance, Work
from perfguard.errors import (
    BaselineError,
    DeviceError,
    ExitStatus,
    GuardFailure,
    MeasurementError,
    PerfguardError,
    Regression,
    UsageError,
    WrongResult,
)
from perfguard.hard import derived
from perfguard.hard.marks import ids, offsets

__version__ = "0.1.0"

__all__ = [
    "BaselineError",
    "DeviceError",
    "ExitStatus",
    "GuardFailure",
    "Hard",
    "MeasurementError",
    "PerfguardError",
    "Regression",
    "Tolerance",
    "UsageError",
    "Work",
    "WrongResult",
    "derived",
    "ids",
    "offsets",
]
