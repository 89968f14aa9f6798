"""What a machine must have, and whether this one has it: `muster doctor`, and the first start of a
cluster.

Run once, not a service.

Each check is a function that gives one `Finding`; `checks.py` lists them, `disk.py` measures the
disk.
"""

import msgspec

OK = "ok"
MISSING = "missing"
TOO_OLD = "too old"
SLOW = "slow"
WRONG = "wrong"


class Finding(msgspec.Struct, frozen=True):
    """`fix` is empty when nothing has to be done."""

    what: str
    state: str
    found: str
    fix: str = ""
    needed: bool = True
