"""`perfguard selfcheck`: false alarms and power of the judge, measured on the user's own suite (docs/selfcheck.md)."""
