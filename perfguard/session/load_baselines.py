"""The baselines that a device's readings are judged with: its own, those of every CPU, those of compiled targets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perfguard.judge.lane import Lane
from perfguard.measure.binaries.targets import TARGETS, target_of
from perfguard.model.records import NO_BASE, Baseline, BaseTree, Toolchain
from perfguard.model.suite_names import file_of
from perfguard.store.baseline_files import Store

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device


def load_lane(
    store: Store,
    device: Device,
    toolchain: Toolchain,
    suites: Sequence[str],
    targets: Sequence[str] = (),
    *,
    base: BaseTree = NO_BASE,
    any_machine: bool = False,
) -> Lane:
    """The baselines that cases of `suites` are judged with on `device`, compiling for `targets`.

    Args:
        base: the base that their times are compared with.
        any_machine: load only the baselines of its target and of compiled targets, which hold on any machine of the
            target.

    Raises:
        BaselineError: a file that cannot be read.
        UsageError: a target that is not known.
    """
    identity = device.identity
    own = {} if any_machine else {suite: store.load(identity.slug, suite) for suite in suites}
    for name in targets:
        target_of(name)
    # On a GPU, kernels are compiled for its own architecture only; a machine without a GPU covers the others.
    compiled_for = targets if device.holds_cpu_tensors else {identity.architecture} & set(TARGETS)
    target = f"targets/{identity.target}" if identity.target else None
    portable = {suite: store.load(target, suite) for suite in suites} if target else {}
    return Lane(
        hardware=identity,
        toolchain=toolchain,
        baselines={suite: baseline for suite, baseline in own.items() if baseline},
        portable={suite: baseline for suite, baseline in portable.items() if baseline},
        targets={name: found for name in compiled_for if (found := _files(store, f"targets/{name}", suites))},
        elsewhere={} if any_machine else store.elsewhere(suites, identity.slug),
        base=base,
    )


def lost_suites(store: Store, device: Device, root: Path) -> list[str]:
    """Suites with baselines on `device` whose test file is gone."""
    identity = device.identity
    folders = [identity.slug, *([f"targets/{identity.target}"] if identity.target else [])]
    return sorted({suite for folder in folders for suite in store.suites(folder) if not file_of(suite, root).is_file()})


def _files(store: Store, folder: str, suites: Sequence[str]) -> dict[str, Baseline]:
    return {suite: baseline for suite in suites if (baseline := store.load(folder, suite)) is not None}
