"""pytest's hooks of a measuring run: in one process (`measuring`), or with one worker per GPU (`spread`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfguard._compat.pytest_internals import worker_input
from perfguard.measure.devices import find_devices
from perfguard.model.config import Config, parse_categories, read_settings
from perfguard.model.errors import PerfguardError, UsageError
from perfguard.pytest_plugin.measuring_run import Measuring
from perfguard.pytest_plugin.xdist_workers import DEVICE, FOLDER, Controller, Worker
from perfguard.session.extensions import require_usable

__all__ = ["build_config", "count_devices", "start", "start_worker"]


def start(config: pytest.Config) -> None:
    """Turn measuring on for this pytest run; with `-n`, use one worker per device."""
    try:
        built = build_config(config)
        require_usable()
        workers = len(config.option.tx) if getattr(config.option, "numprocesses", None) else 0
        hooks: Controller | Measuring
        if workers:
            hooks = Controller(built, _devices(built, workers), workers)
        else:
            hooks = Measuring(built, os.dup(2))  # pytest captures nothing yet; hanging cases are reported there
    except PerfguardError as error:
        raise pytest.UsageError(str(error)) from error
    config.pluginmanager.register(hooks, "perfguard-hooks")


def start_worker(config: pytest.Config) -> None:
    """The same in a worker, which measures on the device that the controlling process holds for it."""
    given = worker_input(config)
    if DEVICE not in given:
        return  # the controlling process measures nothing
    built = build_config(config)
    settings = msgspec.structs.replace(built.settings, device=given[DEVICE], reports=given[FOLDER])
    hooks = Worker(msgspec.structs.replace(built, settings=settings), os.dup(2))
    config.pluginmanager.register(hooks, "perfguard-hooks")


def build_config(config: pytest.Config) -> Config:
    """The run's configuration from pytest's options and `[tool.perfguard]`.

    Raises:
        UsageError: an invalid option or setting.
    """
    option = config.option
    update = None if option.perfguard_update is None else parse_categories(option.perfguard_update)
    if option.perfguard_reason and update is None:
        raise UsageError("--perfguard-reason: goes with --perfguard-update; add it or leave both out")
    dist = getattr(option, "dist", "no")
    if dist in ("each", "loadgroup") or (dist != "no" and not option.numprocesses):
        raise UsageError(
            f"--dist {dist}: each case is measured once, under its own name, by a worker with a device of its own; "
            "use -n, with --dist load, loadscope, loadfile or worksteal"
        )
    return Config(
        root=config.rootpath,
        settings=read_settings(
            config.rootpath, device=_device_name(option), reports=option.perfguard_reports, base=option.perfguard_base
        ),
        measure=True,
        update=update,
        reason=option.perfguard_reason.strip(),
        lane=option.perfguard_lane,
        session_folder=Path(option.perfguard_session) if option.perfguard_session else None,
    )


def _device_name(option: Any) -> str | None:
    """The requested device. The lane `cpu` means the CPU, whatever else the machine has."""
    named: str | None = option.perfguard_device
    return named or ("cpu" if option.perfguard_lane == "cpu" else None)


def count_devices(config: pytest.Config) -> int | None:
    """Number of workers for `-n auto` in a measuring run; None if the devices are unknown."""
    try:
        settings = read_settings(config.rootpath, device=_device_name(config.option))
        return len(find_devices(settings.device))
    except PerfguardError:
        return None  # reported when the run starts


def _devices(config: Config, workers: int) -> dict[str, str]:
    """Names and keys of the devices that `workers` may measure on. Workers may share them if nothing is timed.

    Raises:
        UsageError: fewer devices than workers, or the CPU, which all workers would share.
    """
    devices = find_devices(config.settings.device)
    if config.untimed:
        return devices
    shared = "cpu" in devices.values()
    if shared or workers > len(devices):
        use = f"use -n {len(devices)}, or run without -n" if len(devices) > 1 else "run without -n"
        raise UsageError(
            f"-n {workers}: workers would time on one device at once and disturb each other; this machine has "
            f"{'no GPU' if shared else len(devices)} for {config.settings.device!r}: {use} (exact metrics alone, with "
            "--perfguard-lane=cpu, and numerics, without --perfguard, may use any -n)"
        )
    return devices
