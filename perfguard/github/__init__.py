"""Reports of lanes, pull-request comments, statuses and accepted changes on GitHub."""
