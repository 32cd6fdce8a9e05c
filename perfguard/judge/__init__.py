"""Pure functions from readings and a baseline to verdicts. Nothing here knows the name of a metric."""
