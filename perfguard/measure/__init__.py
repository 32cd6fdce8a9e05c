"""Measurement of a call: devices, timers, metrics, binaries, compiled graphs."""
