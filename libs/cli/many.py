"""One request per job or node: after a refusal the next one is still sent."""

from collections.abc import Callable, Iterable

from libs.cli.faults import Declined
from libs.cli.terminal.output import complain


def each_of(refs: Iterable[str], act: Callable[[str], None]) -> int:
    """Call `act` for each reference and print refusals. Return 0 if none was refused, else 1."""
    code = 0
    for ref in refs:
        try:
            act(ref)
        except Declined as error:
            complain(str(error))
            code = error.exit_code
    return code
