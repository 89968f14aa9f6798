"""Drivers over vendors' libraries that are built from C here: the real bindings run, no machine
needs a GPU.
"""
