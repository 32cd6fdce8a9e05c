"""Base and working tree measured by turns on one device: worktrees, live processes, their readings."""
