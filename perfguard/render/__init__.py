"""Renders reports as text: pure functions, one output format a file."""
