"""A driver for Triton's launchers that describes an absent device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from perfguard._compat.triton_internals import TARGET
from perfguard.measure.binaries.targets import Target


class Driver:
    """A driver for Triton's launchers that describes an absent device.

    Attributes:
        questions: the queries so far whose answer depends on the target.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.questions: list[str] = []
        self.utils = SimpleNamespace(get_device_properties=self._properties)

    def get_current_target(self) -> Any:
        self.questions.append("target")
        arch = int(self.target.name.removeprefix("sm_")) if self.target.backend == "cuda" else self.target.name
        return TARGET.get()(self.target.backend, arch, self.target.warp_width)

    def get_current_device(self) -> str:
        return f"perfguard-{self.target.name}"  # A kernel keeps its back end under this key.

    def get_current_stream(self, device: Any = None) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        import torch

        return torch.cuda

    def _properties(self, device: Any = 0) -> dict[str, int]:
        self.questions.append("properties")
        return {
            "max_shared_mem": self.target.block_shared_bytes,
            "multiprocessor_count": self.target.processors,
            "warpSize": self.target.warp_width,
            "max_num_regs": self.target.registers or 65536,
        }
