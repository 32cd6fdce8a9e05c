"""What perfguard's own noise and error rates are measured on: one case of every kind."""
