"""What GPU lanes deliver, taken as hostile: archives, reports and edited baselines come from a stranger's code.

Archives become reports, reports are judged again from their raw readings by baselines that the caller trusts, and all
lanes of one commit become an `Overview`. Nothing a lane says of itself is believed but what speaks against it.
"""
