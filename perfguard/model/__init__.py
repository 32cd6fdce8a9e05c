"""Types that all packages share: errors, settings, units, the guarded call and the records of a run; without torch."""
