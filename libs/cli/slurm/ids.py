"""Job ids as Slurm's scripts expect them.

The shims print Muster's ids. Programs that accept only digits (Nextflow, Snakemake, submitit) get
numbers if MUSTER_SLURM_NUMERIC_IDS is 1: a number holds the whole id, so nothing is stored. Every
command accepts both forms. Pure. Tests: tests/unit/test_slurm_ids.py.
"""

import re
from typing import Final

# The letters of an id after its first one (base 32, RFC 4648, in small letters).
DIGITS: Final = "abcdefghijklmnopqrstuvwxyz234567"
# How many of them an id has; one that was made from an Idempotency-Key has the larger number.
LENGTHS: Final = (10, 16)

_ID: Final = re.compile(r"j([a-z2-7]{10}|[a-z2-7]{16})((?:_.+)?)")
# A number of fewer digits is a name.
_NUMBER: Final = re.compile(r"([0-9]{16,25})((?:_.+)?)")
_BATCH: Final = re.compile(r"\.(?:batch|extern|0)$")
_ONE: Final = 1


def number_of(job_id: str) -> str:
    """Return the number that stands for an id; an id of another form is returned as it is.

    The number of an array's element keeps its part `_3`.
    """
    found = _ID.fullmatch(job_id)
    if found is None:
        return job_id
    value = _ONE
    for letter in found[1]:
        value = value * len(DIGITS) + DIGITS.index(letter)
    return f"{value}{found[2]}"


def id_of(text: str) -> str:
    """Return the reference of a job for the gateway, for an id, a number or a name.

    Slurm's names of steps (`123.batch`) mean their job.
    """
    text = _BATCH.sub("", text)
    found = _NUMBER.fullmatch(text)
    if found is None:
        return text
    value, letters = int(found[1]), ""
    while value >= len(DIGITS):
        value, digit = divmod(value, len(DIGITS))
        letters = DIGITS[digit] + letters
    return f"j{letters}{found[2]}" if value == _ONE and len(letters) in LENGTHS else text


def dependencies_of(text: str) -> str:
    """Return the value of --dependency with Muster's ids: `afterok:123:456,singleton`."""
    return ",".join(
        ":".join((kind, *map(id_of, jobs)))
        for kind, *jobs in (word.split(":") for word in text.split(","))
    )
