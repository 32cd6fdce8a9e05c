"""GitHub's API: the measured run and its pull request, artifacts, files at a commit, the comment, commit statuses.

This package knows nothing of kernels, verdicts or layout. It takes finished texts and descriptions, and sends bytes.
"""
