"""Helpers for the tests of those who extend perfguard: a simulated GPU, on which no real time passes.

Opened by its name (`pytest --perfguard --perfguard-device fake`) or as an object, it needs no hardware, and no torch
before a call of torch's is measured::

    from perfguard.testing import FakeDevice, launch

    device = FakeDevice(session_noise=0, block_noise=0, launch_noise=0)

    def double(x):
        launch("double", us=10.0)  # a kernel that takes 10 µs on the device, and its host 2 µs
        return 2 * x

`fake` describes how kernels, memory and faults are simulated. docs/reference.md has an example of a whole test.
"""

from perfguard.testing.fake import FakeDevice, allocate, fault, launch

__all__ = ["FakeDevice", "allocate", "fault", "launch"]
