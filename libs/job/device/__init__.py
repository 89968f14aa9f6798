"""The devices of one process: found, contexts, limits, peers and copies; and the tables of the
vendors' functions behind them.

`context.py` is the public face. `cuda.py`, `hip.py` and `level_zero.py` hold one vendor each, over
`library.py`, which opens the vendor's library, checks each return code and bounds each call in
time. `errors.py` holds the typed error of all of them. docs/devices-in-jobs.md is for users.
"""
