"""One cluster of containers for the whole suite, or one of processes for each file."""

import os
from collections.abc import Iterator
from typing import Final

import pytest

from tests.e2e.compose import ComposeStack
from tests.e2e.processes import ProcessStack
from tests.e2e.stack import VARIABLE, Stack

IN_CONTAINERS: Final = os.environ.get(VARIABLE) == "compose"


# A cluster of processes starts in a second, and costs processor time until it ends.
@pytest.fixture(scope="session" if IN_CONTAINERS else "module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made: Stack = ComposeStack() if IN_CONTAINERS else ProcessStack(tmp_path_factory.mktemp("e2e"))
    yield made
    made.close()
