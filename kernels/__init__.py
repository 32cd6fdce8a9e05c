"""The GPU kernels that perfguard guards. Found from the repository root, never installed."""
