"""Baselines of a store as a plan reads them."""

from __future__ import annotations

from perfguard.judge.lane import Lane
from perfguard.model.records import Hardware, Toolchain
from perfguard.store.baseline_files import Store


def lane_of(store: Store, hardware: Hardware, toolchain: Toolchain) -> Lane:
    """The lane of a hardware with all files of the store."""
    files = [file for folder in store.folders() for file in store.baselines(folder).values()]
    return Lane(hardware, toolchain, files)
