"""False alarms and power of the judge, measured on a user's own suite (docs/selfcheck.md)."""
