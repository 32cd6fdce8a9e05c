"""`perfguard accept`: measured values of a report become baselines, for a commit that people review."""
