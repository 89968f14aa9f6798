"""The copies of models that jobs pulled to this node: folders, uses, and the pulls themselves.

A pull is an ordinary job that runs `libs/job/pulling` (docs/decisions/0064).
"""
