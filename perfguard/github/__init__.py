"""The GitHub side of the post job: find the pull request, fetch artifacts and files, write one comment.

This package knows nothing of kernels, verdicts or layout. It takes finished bodies and descriptions, and sends bytes.
"""

from perfguard.github.artifacts import LaneArtifact, fetch_artifacts
from perfguard.github.client import Client, open_client
from perfguard.github.clock import Clock
from perfguard.github.comments import Action, Posted, Rules, post_comment
from perfguard.github.contents import MergeBase, Tree, fetch_file, fetch_tree, find_merge_base
from perfguard.github.easing import ACCEPTED_LABEL, Easing, read_easing
from perfguard.github.identity import State
from perfguard.github.pulls import Found, Pull, find_pull
from perfguard.github.runs import MEASURE_WORKFLOW, Run, fetch_run, read_event, reason_to_stop
from perfguard.github.statuses import Status, set_statuses
from perfguard.github.summary import warning_command, without_commands, write_summary
from perfguard.github.token import Environ
from perfguard.github.troubles import NoToken

__all__ = [
    "ACCEPTED_LABEL",
    "MEASURE_WORKFLOW",
    "Action",
    "Client",
    "Clock",
    "Easing",
    "Environ",
    "Found",
    "LaneArtifact",
    "MergeBase",
    "NoToken",
    "Posted",
    "Pull",
    "Rules",
    "Run",
    "State",
    "Status",
    "Tree",
    "fetch_artifacts",
    "fetch_file",
    "fetch_run",
    "fetch_tree",
    "find_merge_base",
    "find_pull",
    "open_client",
    "post_comment",
    "read_easing",
    "read_event",
    "reason_to_stop",
    "set_statuses",
    "warning_command",
    "without_commands",
    "write_summary",
]
