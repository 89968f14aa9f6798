"""The package that users' programs import from Muster: `muster.memory`.

The names are re-exported from `libs.job`; nothing here needs the rest of Muster.
"""
