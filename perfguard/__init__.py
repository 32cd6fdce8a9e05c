"""perfguard: a guard for GPU-kernel performance and correctness, as a pytest plugin and a command line."""

from perfguard.call import Tolerance, Work
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

__version__ = "0.1.0"

__all__ = [
    "BaselineError",
    "DeviceError",
    "ExitStatus",
    "GuardFailure",
    "MeasurementError",
    "PerfguardError",
    "Regression",
    "Tolerance",
    "UsageError",
    "Work",
    "WrongResult",
]
