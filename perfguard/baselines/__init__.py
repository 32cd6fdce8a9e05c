"""The stored baselines: one YAML file for each hardware (or target) and suite, and the changes that an update makes.

`Store` reads them, `plan` turns judged results into changes, `select` picks the requested ones, `apply` writes them. No
other package knows YAML.
"""

from perfguard.baselines.applying import apply
from perfguard.baselines.changes import Change, category_of, select
from perfguard.baselines.planning import plan, recordable
from perfguard.baselines.store import Store, load

__all__ = ["Change", "Store", "apply", "category_of", "load", "plan", "recordable", "select"]
