"""Past moments: the cluster's state after any commit, for reads with `at`.

Owns: the folds to past commits, their turns, and the states that are kept for the next read.
Routes do not know whether the state that they read is the present one: `http/queries.py` chooses.
"""
