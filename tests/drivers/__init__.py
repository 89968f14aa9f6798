"""Drivers over fake vendors' libraries, which are built from C here.

The real bindings run, and no machine needs a GPU.
"""
