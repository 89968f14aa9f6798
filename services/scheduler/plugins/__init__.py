"""Plug-ins of other distributions: loading, trial and guarded calls."""
