"""The GitHub side of the post job: find the pull request, fetch artifacts and files, write one comment.

This package knows nothing of kernels, verdicts or layout. It takes finished bodies and descriptions, and sends bytes.
"""
