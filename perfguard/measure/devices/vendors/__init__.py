"""The vendors, one a file. Each is found by being in this folder, or by an entry point `perfguard.devices` of an
installed package."""

from __future__ import annotations

from perfguard.measure.devices.vendor import Vendor
from perfguard.model.extensions import Kind

KIND = Kind("vendor", __name__, "perfguard.devices", needs=("VENDOR",))


def all_vendors() -> tuple[Vendor, ...]:
    """Every vendor, in the order in which 'auto' tries them.

    Raises:
        UsageError: an installed one cannot be used.
    """
    return _in_order([module.VENDOR for module in KIND.modules()])


def own_vendors() -> tuple[Vendor, ...]:
    """Ours alone."""
    return _in_order([module.VENDOR for module in KIND.own()])


def _in_order(vendors: list[Vendor]) -> tuple[Vendor, ...]:
    return tuple(sorted(vendors, key=lambda vendor: float("inf") if vendor.auto is None else vendor.auto))
