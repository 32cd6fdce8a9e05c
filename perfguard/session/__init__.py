"""One run on one device, from its configuration to its report."""
