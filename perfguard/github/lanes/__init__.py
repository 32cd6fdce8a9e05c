"""Results of lanes as untrusted data: archives, reports and edited baselines come from the change's own code.

Archives become reports. Reports are judged again, from their raw readings and the merge base's baselines. All lanes
of one commit become an `Overview`. A lane's own verdicts count only against it.
"""
