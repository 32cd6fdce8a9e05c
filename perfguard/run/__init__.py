"""One run on one device, from its configuration to its report."""

from perfguard.run.opening import commit_of, open_run
from perfguard.run.run import Collected, Run
from perfguard.run.settling import settle

__all__ = ["Collected", "Run", "commit_of", "open_run", "settle"]
