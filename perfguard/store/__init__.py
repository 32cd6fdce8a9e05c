"""The stored baselines: one YAML file for each hardware and suite. No other package uses YAML."""
