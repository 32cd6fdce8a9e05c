"""Sets a repository up: `perfguard init` writes the settings and workflows that docs/start.md and docs/ci.md describe.

The workflows in `templates` are those of perfguard's own repository, up to the steps that install and start it;
tests/test_workflows.py holds this. Nothing is written over: a file that a person has edited is left, and reported.
"""
