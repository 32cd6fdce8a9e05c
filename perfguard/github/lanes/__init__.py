"""Results of GPU lanes, treated as hostile: archives, reports and edited baselines come from untrusted code.

Archives become reports. Reports are judged again, from their raw readings and the caller's trusted baselines. All lanes
of one commit become an `Overview`. A lane's own verdicts count only against it.
"""
