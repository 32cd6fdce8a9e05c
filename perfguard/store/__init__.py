"""The stored baselines: one YAML file for each hardware (or target) and suite. No other room knows YAML."""
