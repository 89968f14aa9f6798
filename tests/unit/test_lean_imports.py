"""What the processes of a cluster must not import, because it would delay their start."""

import subprocess
import sys

import pytest

SLOW = ("aiohttp", "alembic", "cryptography", "fastapi", "joserfc")
# A process of the cluster -> the modules among SLOW that it needs.
NEEDS = {
    "services.scheduler.__main__": (),
    "services.quota.__main__": (),
    "services.node_agent.__main__": (),
    "services.audit.__main__": ("cryptography",),
    "services.api_gateway.__main__": ("aiohttp",),
    "libs.cli.verbs.ps": (),
    "libs.embedded.commands": (),
    "libs.embedded.launcher": (),
}


@pytest.mark.parametrize("module", NEEDS)
def test_process_imports_only_what_it_needs(module: str) -> None:
    code = f"import {module}, sys; print(*(each for each in {SLOW} if each in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert tuple(done.stdout.split()) == NEEDS[module]


@pytest.mark.parametrize(
    ("module", "given", "is_on"),
    [
        ("services.quota.__main__", (), False),
        ("services.audit.__main__", (), False),
        ("services.audit.__main__", ("verify",), True),
        ("services.scheduler.simulate.__main__", (), True),
    ],
)
def test_only_a_service_begins_without_the_collector(
    module: str, given: tuple[str, ...], is_on: bool
) -> None:
    code = (
        "import gc, sys, importlib.util as found\n"
        f"sys.modules['__main__'].__spec__ = found.find_spec('{module}')\n"
        "from libs.common.process import beginning\n"
        "print(gc.isenabled())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *given], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == str(is_on)
