"""What every room speaks of: errors, settings, units, the guarded call and the records of a run. No torch here."""
