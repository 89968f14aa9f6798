"""Placeholders of a replica, which its agent replaces when it starts.

Pure. `{port}` stands for the port of the placement and `{host}` for the address of the node, both
in words of the command; `{key}` stands for the key of the attempt, in values of the environment.
A command may not hold the key: any process of the machine can read commands. Tests:
tests/unit/test_agent_serving.py, tests/unit/test_environment.py.
"""

from collections.abc import Iterable
from typing import Final

PORT: Final = "{port}"
HOST: Final = "{host}"
KEY: Final = "{key}"


def any_has(texts: Iterable[str], placeholder: str) -> bool:
    return any(placeholder in text for text in texts)
