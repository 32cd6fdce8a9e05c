"""Tests that run on several ranks at once: their launch, hooks, process groups, checks and reports."""
