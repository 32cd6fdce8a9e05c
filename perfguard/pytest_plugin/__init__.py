"""The modules that a pytest run with `--perfguard` loads. `perfguard/plugin.py` holds the options and the fixture."""
