"""Notifications: which facts go to which destination, what is sent, and who sends it.

Pure: `rules.py` (which facts), `messages.py` (what is sent), `addresses.py` (where to), `body.py`
(requests). The rest sends: one gateway at a time holds the lease (`lease.py`), follows the log
(`feed.py`) and has one task for each destination (`delivery.py`), which keeps its position
(`positions.py`). Decision 89.
"""
