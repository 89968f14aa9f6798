"""The diagnosis of jobs: evidence from all nodes of a job, the verdict, and its record.

The rules are in `libs/common/diagnosis/rules.py`. For users: docs/diagnose.md.
"""
