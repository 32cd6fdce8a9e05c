"""Whether a call is right: numerics, derived inputs, memory that nobody may read or write."""
