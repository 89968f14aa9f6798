"""Checks the placeholders of pulled models in a job's command and variables.

Pure. The agent replaces them (`services/node_agent/pulled/`). Tests:
tests/unit/test_placeholders.py.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from libs.common.errors import Refused
from libs.common.placeholders import PULL, pulled_in
from libs.job.pulling.errors import PullError
from libs.job.pulling.listing import reference_of

# Pulled models that one job may use.
PULLED_MAX: Final = 16


def check(command: Sequence[str], env: Mapping[str, str], image: str) -> None:
    """Check the names of pulled models, and that a pull has no image. Raises Refused."""
    names = pulled_in((*command, *env.values()))
    if len(names) > PULLED_MAX:
        raise Refused(
            f"command: {len(names)} pulled models are too many: name at most {PULLED_MAX}"
        )
    for name in names:
        try:
            reference_of(name)
        except PullError as error:
            raise Refused(f"command: {{pulled:{name[:64]}}}: {error}") from error
    if image and tuple(command[:1]) == (PULL,):
        raise Refused(f"image: a pull ({PULL}) runs without an image: leave it out")
