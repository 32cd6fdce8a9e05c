"""The start of a measuring run: its configuration, and its hooks, in one process or with one xdist worker per GPU.

A process that measures for another one has pytest's original arguments, and drops those not meant for it. Selection,
repetition, stopping and reporting belong to the asking process. Their options are reset after pytest has parsed them,
from whatever source: the command line, a file of arguments, `addopts` or a variable.
"""

from __future__ import annotations

import math
import os
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfguard._compat.pytest_internals import worker_input
from perfguard.measure.devices import find_devices
from perfguard.model.config import Config, find_project, parse_categories, read_settings
from perfguard.model.errors import PerfguardError, UsageError
from perfguard.model.units import counted
from perfguard.pytest_plugin.failures import usage_errors
from perfguard.pytest_plugin.items import BESIDE, OBSERVED, observed_paths
from perfguard.pytest_plugin.measuring_run import Measuring
from perfguard.pytest_plugin.observing import Observer
from perfguard.session.child import read_request
from perfguard.session.pairing.worktrees import uncommitted_code

# Option -> its value in a process that measures for another one. Options that no plugin has defined stay undefined.
_NOT_ITS_OWN: dict[str, Any] = {
    "maxfail": 0, "lf": False, "failedfirst": False, "newfirst": False, "stepwise": False, "stepwise_skip": False,
    "stepwise_reset": False, "usepdb": False, "trace": False, "collectonly": False, "durations": None, "verbose": -1,
    "numprocesses": None, "dist": "no", "tx": [], "looponfail": False,
    "xmlpath": None, "report_log": None, "htmlpath": None, "log_file": os.devnull,
    "benchmark_json": None, "benchmark_save": None, "benchmark_autosave": False,
    "perfguard_update": None, "perfguard_reason": "", "perfguard_base": None,
}  # fmt: skip
_NO_SELECTION: dict[str, Any] = {"keyword": "", "markexpr": "", "deselect": None, "pyargs": False}

# Plugins that store failures for the user's next run, or limit the time of a test that waits for its turn.
_PLUGINS = ("lfplugin", "nfplugin", "stepwiseplugin", "timeout")


def start(config: pytest.Config) -> None:
    """Turn measuring on for this pytest run; with `-n`, use one worker per device."""
    with usage_errors():
        built = build_config(config)
        if built.update is not None and not config.option.perfguard_dirty:
            _refuse_uncommitted(built)
        workers = len(config.option.tx) if getattr(config.option, "numprocesses", None) else 0
        if workers:
            _check_devices(built, workers)
            from perfguard.pytest_plugin.xdist_workers import Controller

            config.pluginmanager.register(Controller(built), "perfguard-hooks")
        else:
            # pytest captures nothing yet: hanging cases are reported to this stderr.
            _register(config, built, Measuring(built, os.dup(2)))


def start_worker(config: pytest.Config) -> None:
    """Turn measuring on in an xdist worker."""
    from perfguard.pytest_plugin.xdist_workers import FOLDER, XdistWorker

    given = worker_input(config)
    if FOLDER not in given:
        return  # The controlling process measures nothing.
    built = build_config(config)
    settings = msgspec.structs.replace(built.settings, reports=given[FOLDER])
    _register(config, built, XdistWorker(msgspec.structs.replace(built, settings=settings), os.dup(2)))


def _register(config: pytest.Config, built: Config, hooks: Measuring) -> None:
    """Register the hooks of a run that measures in this process, and the paths that it observes."""
    option, setting = config.option.perfguard_observe, built.settings.observe
    if option is not None:
        config.stash[OBSERVED] = observed_paths(option, config.invocation_params.dir)
    elif setting:
        config.stash[OBSERVED] = observed_paths("." if setting is True else setting, config.rootpath)
    config.pluginmanager.register(hooks, "perfguard-hooks")
    config.pluginmanager.register(Observer(hooks), "perfguard-observer")


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
    here = config.invocation_params.dir
    named = option.perfguard_reports or ""
    outside = not (here / named).resolve().is_relative_to(find_project(here))
    line = [*config.invocation_params.args, *shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))]
    if outside and named in line and not option.rootdir:
        raise UsageError(
            f"--perfguard-reports {named}: pytest takes a folder behind a space for one of tests, and looks for its "
            f"root directory, with settings and baselines, above it; write --perfguard-reports={named}"
        )
    beside = config.stash.get(BESIDE, None)
    settings = read_settings(
        config.rootpath, device=_device_name(option), reports=option.perfguard_reports, base=option.perfguard_base
    )
    if beside is not None:  # Everything is compared until it is decided, and only the given calls run.
        settings = msgspec.structs.replace(settings, pair_minutes=math.inf, extra_seconds=0.0)
    return Config(
        root=config.rootpath,
        settings=settings,
        measure=True,
        update=update,
        reason=option.perfguard_reason.strip(),
        lane=option.perfguard_lane,
        session_folder=Path(option.perfguard_session) if option.perfguard_session else None,
        device=option.perfguard_device or "",
        here=here,
        beside=beside,
    )


def _refuse_uncommitted(config: Config) -> None:
    """Refuse to record uncommitted code.

    Raises:
        UsageError: there is some; the message names it.
    """
    code = uncommitted_code(config.root, [config.baselines_dir, config.reports_dir, config.cache_dir.parent])
    if code:
        more = f" and {counted(len(code) - 1, 'other file')} are" if len(code) > 1 else " is"
        raise UsageError(
            f"--perfguard-update: {code[0]}{more} not committed, so no commit would hold what is recorded; commit "
            "first, or record all the same with --perfguard-dirty"
        )


def _device_name(option: Any) -> str | None:
    """The requested device. The lane `cpu` means the CPU, whatever else the machine has."""
    named: str | None = option.perfguard_device
    return named or ("cpu" if option.perfguard_lane == "cpu" else None)


def device_setting(config: pytest.Config) -> str:
    """The device that `--perfguard-device`, the lane or `[tool.perfguard]` names.

    Raises:
        pytest.UsageError: a setting is wrong.
    """
    with usage_errors():
        return read_settings(config.rootpath, device=_device_name(config.option)).device


def count_devices(config: pytest.Config) -> int | None:
    """Number of workers for `-n auto` in a measuring run; None if the devices are unknown."""
    try:
        return len(find_devices(device_setting(config)))
    except (PerfguardError, pytest.UsageError):
        return None  # The start of the run reports the error.


def _check_devices(config: Config, workers: int) -> None:
    """Refuse more workers than there are devices. Workers may share them if nothing is timed.

    Raises:
        UsageError: fewer devices than workers, or the CPU, which all workers would share.
    """
    devices = find_devices(config.settings.device)
    shared = "cpu" in devices.values()
    if not config.untimed and (shared or workers > len(devices)):
        use = f"use -n {len(devices)}, or run without -n" if len(devices) > 1 else "run without -n"
        raise UsageError(
            f"-n {workers}: workers would time on one device at once and disturb each other; this machine has "
            f"{'no GPU' if shared else len(devices)} for {config.settings.device!r}: {use} (exact metrics alone, with "
            "--perfguard-lane=cpu, and numerics, without --perfguard, may use any -n)"
        )


def reset_options(config: pytest.Config) -> None:
    """Reset the options before anything acts on them. pytest gets the files of the requested tests, otherwise the
    existing files that the user selected. It gets no node ids: it refuses unknown ones, and another checkout may lack a
    test.

    Raises:
        UsageError: there is no request, or none of the paths that the user named exists.
    """
    folder = Path(config.option.perfguard_session)
    with usage_errors():
        request = read_request(folder)
    tests = request.tests
    _set(config, _NOT_ITS_OWN)
    if request.ranks:  # pytest empties the folder that --basetemp names, which is the parent's.
        config.option.basetemp = str(folder / f"tmp-{os.environ['RANK']}")
    if tests is not None:
        _set(config, _NO_SELECTION)
        files = dict.fromkeys(config.rootpath / nodeid.partition("::")[0] for nodeid in tests)
        config.args = [str(file) for file in files if file.exists()]
    elif not config.getoption("pyargs", False):
        folder = config.invocation_params.dir
        there = [each for each in config.args if (folder / each.partition("::")[0]).exists()]
        if config.args and not there:
            raise pytest.UsageError(
                f"{', '.join(config.args)}: not in this checkout, so there is nothing to compare with"
            )
        config.args = there


def drop_plugins(config: pytest.Config) -> None:
    """Unregister the plugins after all are configured: some of them declare marks, which stay."""
    for name in _PLUGINS:
        plugin = config.pluginmanager.get_plugin(name)
        if plugin is not None:
            config.pluginmanager.unregister(plugin)


def _set(config: pytest.Config, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
