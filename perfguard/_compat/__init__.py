"""Private names of other projects, one file for each project."""
