"""Properties of tensors, graphs and training steps that both `check` and `measure` need."""
