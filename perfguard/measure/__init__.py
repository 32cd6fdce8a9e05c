"""What a call costs: devices, timers, metrics, binaries, compiled graphs."""
