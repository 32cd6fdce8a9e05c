"""`perfguard comment`: what the lanes of one run delivered, judged and told in the pull request."""
