"""Renders reports as text: pure functions, with one file per output format."""
