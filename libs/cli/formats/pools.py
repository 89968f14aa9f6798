"""Memory pools in the formats of other systems, whose errors name the line of the size.

Pure. `sbatch.py` reads them in `#MUSTER` lines, `kubernetes.py` in annotations. Tests:
tests/unit/test_cli_sbatch.py and test_cli_kubernetes.py.
"""

from fractions import Fraction
from typing import Final

from libs.common.model import BYTES_MAX, POOL_BYTES_MIN
from libs.common.quantities import bytes_of

# Fields of a job by the names of the flags of `muster submit`.
POOLS: Final = {"pool": "pool_bytes", "host-pool": "host_pool_bytes"}


def read_pool(text: str) -> int:
    """Return the bytes of a pool, for example of `40GiB`. Raises ValueError."""
    return pool_bytes(bytes_of(text))


def pool_bytes(size: int | Fraction) -> int:
    """Return the bytes of a pool. Raises ValueError for a size that no job may ask for."""
    if not POOL_BYTES_MIN <= size <= BYTES_MAX:
        raise ValueError(
            f"a pool has at least {POOL_BYTES_MIN} bytes (2MiB), the step in which memory is "
            f"granted, and at most {BYTES_MAX}"
        )
    return int(size)
