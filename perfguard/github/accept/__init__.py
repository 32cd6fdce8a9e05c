"""`perfguard accept`: writes measured values of a report into the baselines, for a commit under review."""
