"""Private names of other projects: a file for each project, and for torch one for each area.

A declared name is imported on its first use. Importing this room loads none of these projects, except for
`torch_utils`, whose importers have loaded torch already.
"""
