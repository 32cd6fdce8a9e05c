"""What `check` and `measure` both need to know of tensors."""
