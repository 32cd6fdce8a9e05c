"""`perfguard selfcheck`: measures false alarms and power of the judge on the user's own suite (docs/selfcheck.md)."""
