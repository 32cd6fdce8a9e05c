"""Accesses GitHub's API: the measured run, its pull request and artifacts, files at a commit, comments, statuses.

This package is independent of kernels, verdicts and layout. It sends finished texts, and returns bytes.
"""
