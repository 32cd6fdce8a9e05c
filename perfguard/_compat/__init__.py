"""Private names of other projects: a file for each project, and for torch one for each area.

What is declared here is imported when it is asked for. Importing this room loads nothing of theirs, except
`torch_utils`, whose importers have loaded torch already.
"""
