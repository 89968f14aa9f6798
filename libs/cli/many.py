"""One request for each of several jobs: a refusal of one is said and does not keep the others from
being asked.
"""

from collections.abc import Callable, Iterable

from libs.cli.faults import Declined
from libs.cli.terminal.output import complain


def each_of(refs: Iterable[str], act: Callable[[str], None]) -> int:
    """The exit code: 0 when all went well, else 1."""
    code = 0
    for ref in refs:
        try:
            act(ref)
        except Declined as error:
            complain(str(error))
            code = error.exit_code
    return code
