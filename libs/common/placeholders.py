"""Placeholders of a replica, which its agent replaces when it starts.

Pure. `{port}` stands for the port of the placement and `{host}` for the address of the node, both
in words of the command; `{key}` stands for the key of the attempt, in values of the environment.
A command may not hold the key: any process of the machine can read commands.

In any job, `{pulled:REPOSITORY[@REVISION]}` stands for the folder of a pulled model, in words of
the command and values of the environment. A command that begins with `{pull}` is a pull. Tests:
tests/unit/test_agent_serving.py, tests/unit/test_environment.py, tests/unit/test_placeholders.py.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

PORT: Final = "{port}"
HOST: Final = "{host}"
KEY: Final = "{key}"
PULL: Final = "{pull}"
_PULLED: Final = re.compile(r"\{pulled:([^{}\s]{0,400})\}")


def any_has(texts: Iterable[str], placeholder: str) -> bool:
    return any(placeholder in text for text in texts)


def pulled_in(texts: Iterable[str]) -> list[str]:
    """Return the references to pulled models in these texts, each once."""
    return list(dict.fromkeys(name for text in texts for name in _PULLED.findall(text)))


def with_pulled(text: str, paths: Mapping[str, str]) -> str:
    """Return the text with the folders of pulled models, by their references."""
    return _PULLED.sub(lambda match: paths.get(match[1], match[0]), text)
