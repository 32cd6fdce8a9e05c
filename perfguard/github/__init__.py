"""Reads reports of lanes, posts comments and commit statuses, and accepts changes."""
