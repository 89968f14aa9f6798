"""One cluster for the whole suite."""

import os
from collections.abc import Iterator

import pytest

from tests.e2e.compose import ComposeStack
from tests.e2e.processes import ProcessStack
from tests.e2e.stack import VARIABLE, Stack


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    in_containers = os.environ.get(VARIABLE) == "compose"
    made: Stack = ComposeStack() if in_containers else ProcessStack(tmp_path_factory.mktemp("e2e"))
    yield made
    made.close()
