"""Reports of lanes, the pull request's comment, commit statuses, and accepted changes."""
