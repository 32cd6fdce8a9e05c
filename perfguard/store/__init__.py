"""The stored baselines: one YAML file for each hardware and suite. No other room knows YAML."""
