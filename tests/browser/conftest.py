"""One browser for all tests of this folder; without one they say what to install."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import chromium, lacking


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = lacking()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(300))
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
async def browser() -> AsyncIterator[Any]:
    async with chromium() as found:
        yield found
