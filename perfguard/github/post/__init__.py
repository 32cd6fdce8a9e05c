"""`perfguard comment`: judges the lanes of one run and reports in the pull request."""
