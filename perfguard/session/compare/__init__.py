"""`perfguard compare`: the merge base and the working tree, measured side by side by live processes."""
