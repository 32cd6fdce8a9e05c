"""Tests that run on several ranks at once: launches, hooks of pytest, process groups, checks, merged reports."""
