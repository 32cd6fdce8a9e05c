"""A process that measures for another one: it has pytest's original arguments, and drops those not meant for it.

Selection, repetition, stopping and reporting belong to the asking process. Their options are reset after pytest has
parsed them, from whatever source: the command line, a file of arguments, `addopts` or a variable.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from perfguard.model.errors import UsageError
from perfguard.session.child import read_request

# Option -> its value in such a process. Options that no plugin has defined stay undefined.
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


def take_options_back(config: pytest.Config) -> None:
    """Reset the options, before anything acts on them. The files are those of the requested tests, otherwise those that
    the user selected, if they exist. Files are named, since pytest refuses an unknown node id, and in another checkout
    a test may be new or gone.

    Raises:
        UsageError: there is no request, or none of the paths that the user named exists.
    """
    try:
        tests = read_request(Path(config.option.perfguard_session)).tests
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
    _set(config, _NOT_ITS_OWN)
    if tests is not None:
        _set(config, _NO_SELECTION)
        files = dict.fromkeys(config.rootpath / nodeid.partition("::")[0] for nodeid in tests)
        config.args = [str(file) for file in files if file.exists()]
    elif not config.getoption("pyargs", False):
        folder = config.invocation_params.dir
        there = [each for each in config.args if (folder / each.partition("::")[0]).exists()]
        if config.args and not there:
            raise pytest.UsageError(f"{', '.join(config.args)}: not there; there is nothing to compare with")
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
