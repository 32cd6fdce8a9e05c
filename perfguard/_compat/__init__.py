"""Private names of other projects: a file for each project, and for torch one for each area.

What is declared here is imported when it is asked for, so that importing this room loads nothing of theirs, but for
`dispatch_mode` and `torch_trees`, which stand where torch is loaded already.
"""
