"""The vendors and their interface: names of devices, finding and opening them, findings of `perfguard doctor`.

Each vendor is one file in this folder, with a `VENDOR`. Importing it loads no torch, because the doctor works without.
"""

from __future__ import annotations

import abc
import importlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from perfguard.model.errors import DeviceError
from perfguard.model.modules import modules_in

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device
    from perfguard.measure.devices.torch_gpu import TorchGpu

_SIMULATED = "perfguard.testing.fake"  # Its room is above this one and imports this one.

# These words of a marketing name do not distinguish kinds of devices.
_NOISE = re.compile(
    r"\((?:r|tm|c)\)|\bhbm\d+e?\b|\binstinct\b|\boam\b|\bcpu\b|\bprocessors?\b|\b\d+-core\b|@.*", re.IGNORECASE
)


#: A function that imports a module by name, as `importlib.import_module` does.
Import = Callable[[str], ModuleType]


class Finding(Struct, frozen=True):
    """The finding on one topic. `missing` is empty if nothing is missing; otherwise `next_step` is the remedy."""

    topic: str
    value: str = ""
    missing: str = ""
    next_step: str = ""


def tool(load: Import, name: str, next_step: str) -> Finding:
    """The finding on a module that reads a vendor's clocks."""
    try:
        module = load(name)
    except Exception as error:  # amdsmi raises various errors if its library is missing.
        return Finding(name, "", f"cannot be imported: {error}; clocks and throttling may be unknown", next_step)
    return Finding(name, str(getattr(module, "__version__", "imports")))


class Vendor(abc.ABC):
    """One vendor's devices."""

    #: The values of `--perfguard-device`, as messages list them. The first name means all devices of the vendor.
    names: ClassVar[tuple[str, ...]]

    #: The place in the order of 'auto', the lowest first; None if devices are opened by name only.
    auto: ClassVar[float | None] = None

    #: The vendor as `perfguard doctor` calls its driver ("NVIDIA"), and a build of torch for it ("CUDA"); "" if its
    #: devices need neither.
    driver: ClassVar[str] = ""
    build: ClassVar[str] = ""

    @abc.abstractmethod
    def understands(self, name: str) -> bool:
        """Whether `name` means devices of this vendor, present or not."""

    def is_here(self) -> bool:
        """Whether this machine has such a device that this process can use, which 'auto' needs to know."""
        return False

    @abc.abstractmethod
    def open(self, name: str) -> Device:
        """Open the device called `name`.

        Raises:
            DeviceError: the device, or a package that it needs, is absent.
        """

    def find(self, name: str) -> dict[str, str]:
        """The devices that `name` allows: names for `open` -> `Device.key`. No GPU is opened.

        Raises:
            DeviceError: the device does not exist.
        """
        return {name: self.open(name).key}

    def built_for(self, torch: ModuleType) -> str | None:
        """Version of the vendor's toolkit for which this torch is built; None if torch is built for another vendor."""
        return None

    def has_driver(self, root: Path) -> bool:
        """Whether the driver is loaded on a machine whose `/proc`, `/sys` and `/dev` are in `root`."""
        return False

    def tools(self, root: Path, load: Import) -> Iterator[Finding]:
        """Findings on packages and permissions that are needed beside a loaded driver."""
        yield from ()


class TorchVendor(Vendor):
    """A vendor whose GPUs torch drives as `torch.<kind>`. Their names are such as 'cuda' and 'cuda:1'."""

    kind: ClassVar[str]
    opens: ClassVar[type[TorchGpu]]

    def understands(self, name: str) -> bool:
        kind, colon, index = name.partition(":")
        return kind == self.kind and (index.isdecimal() or not colon) and self.is_built()

    def is_built(self) -> bool:
        """Whether `torch.<kind>`, which several vendors may share, means this vendor."""
        return True

    def is_here(self) -> bool:
        try:
            import torch
        except ImportError:
            return False
        return bool(getattr(torch, self.kind).is_available()) and self.is_built()

    def open(self, name: str) -> Device:
        require_torch(f"device {name!r}")
        return self.opens(int(name.partition(":")[2] or 0))

    def find(self, name: str) -> dict[str, str]:
        if name != self.kind or not self.is_here():
            return super().find(name)  # Opening a device reports best what is absent.
        import torch

        from perfguard.measure.devices.torch_gpu import device_key

        backend = getattr(torch, self.kind)
        indices = range(backend.device_count())
        return {f"{name}:{i}": device_key(name, i, backend.get_device_properties(i)) for i in indices}

    def built_for(self, torch: ModuleType) -> str | None:
        return getattr(torch.version, self.opens.built_for, None)


def slugify(name: str, vendor: str) -> str:
    """A slug from a marketing name: 'NVIDIA H100 80GB HBM3' -> 'nvidia-h100-80gb'. The vendor comes first, once."""
    words = re.findall(r"[a-z0-9]+", _NOISE.sub(" ", name).lower())
    return "-".join([vendor, *(word for word in words if word != vendor)])


def read_text(path: Path) -> str:
    """The content of a small system file without surrounding white space; "" if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def is_rocm() -> bool:
    """Whether torch.cuda means AMD's GPUs in this process."""
    try:
        import torch
    except ImportError:
        return False
    return torch.version.hip is not None


def require_torch(what: str) -> None:
    """
    Raises:
        DeviceError: torch, which `what` needs, cannot be imported.
    """
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise DeviceError(f"{what}: torch cannot be imported ({error}); pip install 'perfguard[kernels]'") from error


def all_vendors() -> tuple[Vendor, ...]:
    """Every vendor, in the order in which 'auto' tries them."""
    modules = [*modules_in(__name__, "VENDOR"), importlib.import_module(_SIMULATED)]
    vendors: list[Vendor] = [module.VENDOR for module in modules]
    return tuple(sorted(vendors, key=lambda vendor: float("inf") if vendor.auto is None else vendor.auto))
