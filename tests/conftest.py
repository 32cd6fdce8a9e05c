"""pytester for the flow tests, and the plugin under test loaded as users load it."""

from __future__ import annotations

pytest_plugins = ["pytester"]
