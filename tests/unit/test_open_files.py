"""The limit of open files: a process raises its own, and programs of users keep the first one."""

import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest

from libs.common.process import open_files
from libs.common.process.open_files import first_limit, raise_limit

FIRST = 300
LIMIT = resource.RLIMIT_NOFILE


@pytest.fixture(autouse=True)
def _limited() -> Iterator[None]:
    soft, hard = resource.getrlimit(LIMIT)
    resource.setrlimit(LIMIT, (FIRST, hard))
    first_limit.cache_clear()
    yield
    resource.setrlimit(LIMIT, (soft, hard))
    first_limit.cache_clear()


def test_limit_is_raised_to_the_hard_limit_and_the_first_one_is_remembered() -> None:
    _, hard = resource.getrlimit(LIMIT)
    for _ in range(2):
        raise_limit()
        assert resource.getrlimit(LIMIT) == (hard, hard) and first_limit() == FIRST


def test_limit_is_raised_to_a_bound_and_never_lowered() -> None:
    _, hard = resource.getrlimit(LIMIT)
    raise_limit(most=FIRST + 1)
    assert resource.getrlimit(LIMIT) == (FIRST + 1, hard)
    raise_limit(most=FIRST)
    assert resource.getrlimit(LIMIT) == (FIRST + 1, hard)


def test_bound_above_the_hard_limit_is_the_hard_limit() -> None:
    program = (
        "import resource as r; from libs.common.process.open_files import raise_limit;"
        "r.setrlimit(r.RLIMIT_NOFILE, (300, 400)); raise_limit(1000);"
        "print(r.getrlimit(r.RLIMIT_NOFILE))"
    )
    line = [sys.executable, "-c", program]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stdout == "(400, 400)\n"


def test_limit_that_the_kernel_does_not_raise_stays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(which: int, limits: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    with monkeypatch.context() as patched:
        patched.setattr(open_files.resource, "setrlimit", refused)
        raise_limit()
    assert "stays at 300" in caplog.text
