"""Handles the results of lanes as untrusted data: the change's own code makes archives, reports and edited baselines.

Archives become reports. Reports are judged again, from their raw readings and the merge base's baselines. All lanes of
one commit become an `Overview`. The verdicts of a lane count only if they are against it.
"""
