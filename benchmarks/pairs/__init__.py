"""What perfguard promises of times, on this machine: `python -m benchmarks.pairs`."""
