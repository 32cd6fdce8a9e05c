"""Reports to text: pure functions, one output format a file."""
