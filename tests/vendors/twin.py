"""The host twin for the contract tests."""

import pytest

from tests.vendors.fakes import Driver


def host_driver() -> Driver:
    pytest.skip("the host twin is not here yet")
