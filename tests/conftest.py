"""pytester for the flow tests, and the plugin under test loaded as users load it."""

from __future__ import annotations

from hypothesis import settings

pytest_plugins = ["pytester"]

# A commit passes or fails alike everywhere. `--hypothesis-profile=search` looks for new examples.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=1000, deadline=None)
settings.load_profile("repeatable")
