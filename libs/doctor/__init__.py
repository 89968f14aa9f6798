"""Checks of one machine: can it be a node or hold the log?

`muster doctor` runs all checks. The first start of a cluster runs those of the disk. Each check is
a function that returns one `Finding`: `checks.py` lists them, `disk.py` measures the disk.
"""

import msgspec

OK = "ok"
MISSING = "missing"
TOO_OLD = "too old"
SLOW = "slow"
WRONG = "wrong"


class Finding(msgspec.Struct, frozen=True):
    """The result of one check.

    `what` is the name of the check, `state` one of the words above, `found` the observed value.
    `fix` is what to do; empty if nothing. `needed`: `muster doctor` fails if the check does.
    """

    what: str
    state: str
    found: str
    fix: str = ""
    needed: bool = True
