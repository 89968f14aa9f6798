"""`import muster` stays light in jobs, and the client imports nothing of the cluster's services."""

import os
import subprocess
import sys

import muster
import pytest

from tests.tidy import ROOT

PLACES = os.pathsep.join((str(ROOT), str(ROOT / "libs/job/public")))


def loaded(program: str) -> set[str]:
    """The packages that a program has imported at its end."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{program}\nprint(*sys.modules)"],
        env={**os.environ, "PYTHONPATH": PLACES},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_the_package_imports_nothing_until_a_name_is_used() -> None:
    found = loaded("import muster; dir(muster)")
    assert not [name for name in found if name.partition(".")[0] in ("libs", "httpx2", "msgspec")]


def test_the_client_imports_no_service_and_no_server() -> None:
    found = loaded("import muster; muster.Client; muster.AsyncClient; muster.job; muster.errors")
    heavy = ("services", "fastapi", "nats", "sqlalchemy", "aiohttp", "click", "cloudpickle")
    assert not [name for name in found if name.partition(".")[0] in heavy]


def test_the_client_of_grpc_imports_neither_the_services_nor_http() -> None:
    found = loaded("import muster; muster.ClusterClient")
    heavy = ("services", "fastapi", "nats", "aiohttp", "click", "cloudpickle", "httpx2")
    assert not [name for name in found if name.partition(".")[0] in heavy]


def test_the_names_of_the_package_are_those_that_it_lists() -> None:
    assert {"AsyncClient", "Client", "ClusterClient", "errors", "job"} <= set(dir(muster))
    for name in muster.__all__:
        assert getattr(muster, name)
    with pytest.raises(AttributeError, match="no attribute 'Clients'"):
        _ = muster.Clients


def test_a_missing_package_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("libs.client.asynchronous")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "httpx2", None)
    monkeypatch.delitem(vars(muster), "AsyncClient", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'muster-gpu\[client\]'"):
        _ = muster.AsyncClient
