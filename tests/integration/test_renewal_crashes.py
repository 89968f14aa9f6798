"""A change of the authority that a crash interrupted goes on when the command is repeated."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from cryptography import x509

from libs.common.errors import Refused
from libs.common.messages.admission import Admitted
from libs.common.model import NodeId
from libs.common.safety.authorities import Introduction
from libs.embedded import certificates, renewal, shape
from libs.embedded.renewal import NEXT, PLACES
from libs.embedded.shape import Shape

Place = Callable[[Path, str], Path]


class Killed(Exception):
    """The process is killed here."""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    shape.save(tmp_path, Shape(cluster_id="c"))
    certificates.ensure(tmp_path / "keys")
    return tmp_path


def pem(state: Path, name: str) -> x509.Certificate:
    path = certificates.certificate_file(state / "keys", name)
    return x509.load_pem_x509_certificate(path.read_bytes())


def renewed(state: Path) -> list[str]:
    said: list[str] = []
    renewal.renew_authority(state, force=False, say=said.append)
    return said


def check_whole(state: Path) -> None:
    """Check that the authority has signed the servers, that machines trust it, and that nothing of
    the exchange is left.
    """
    keys = state / "keys"
    pem(state, certificates.SERVER).verify_directly_issued_by(pem(state, certificates.AUTHORITY))
    authority = certificates.certificate_file(keys, certificates.AUTHORITY).read_text()
    assert authority in certificates.certificate_file(keys, certificates.TRUSTED).read_text()
    assert [path.name for path in keys.iterdir() if "-next" in path.name] == []
    certificates.server(keys, "proof", certificates.AUTHORITY, ["host"])
    pem(state, "proof").verify_directly_issued_by(pem(state, certificates.AUTHORITY))


def killed_at(state: Path, monkeypatch: pytest.MonkeyPatch, target: Path) -> None:
    """Kill the command before it replaces `target`."""
    replace = Path.replace

    def until(self: Path, to: Path) -> Path:
        if to == target:
            raise Killed
        return replace(self, to)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Path, "replace", until)
        renewed(state)


@pytest.mark.parametrize("place", PLACES)
def test_a_crash_between_the_files_of_the_authority_is_mended_by_a_repeat(
    state: Path, monkeypatch: pytest.MonkeyPatch, place: Place
) -> None:
    before = pem(state, certificates.AUTHORITY)
    killed_at(state, monkeypatch, place(state / "keys", certificates.AUTHORITY))
    renewed(state)
    check_whole(state)
    assert pem(state, certificates.AUTHORITY) != before


@pytest.mark.parametrize("place", PLACES)
def test_one_exchanged_file_is_joined_by_the_other(state: Path, place: Place) -> None:
    """An earlier version exchanged the certificate first."""
    keys = state / "keys"
    trusted = certificates.certificate_file(keys, certificates.TRUSTED)
    certificates.authority(keys, NEXT)
    expected = pem(state, NEXT)
    trusted.write_text(trusted.read_text() + certificates.certificate_file(keys, NEXT).read_text())
    place(keys, NEXT).replace(place(keys, certificates.AUTHORITY))
    assert renewed(state)[-1] == "the change of the authority that was interrupted is complete"
    check_whole(state)
    assert pem(state, certificates.AUTHORITY) == expected


@pytest.mark.parametrize("place", PLACES)
def test_half_of_an_authority_that_was_never_introduced_is_made_again(
    state: Path, place: Place
) -> None:
    keys = state / "keys"
    certificates.authority(keys, NEXT)
    place(keys, NEXT).unlink()
    renewed(state)
    check_whole(state)


@pytest.mark.parametrize("place", PLACES)
def test_a_crash_between_the_files_of_the_servers_is_mended_by_a_repeat(
    state: Path, monkeypatch: pytest.MonkeyPatch, place: Place
) -> None:
    killed_at(state, monkeypatch, place(state / "keys", certificates.SERVER))
    renewed(state)
    check_whole(state)


def test_the_servers_certificate_is_renewed_after_an_interrupted_change(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = certificates.certificate_file(state / "keys", certificates.AUTHORITY)
    killed_at(state, monkeypatch, place)
    renewal.renew(state, say=lambda text: None)
    check_whole(state)


def test_a_machine_that_joins_during_the_change_is_asked_too(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    async def introduced(
        state: Path, found: Shape, nodes: Sequence[NodeId], introduction: Introduction
    ) -> dict[str, str]:
        asked.append(list(nodes))
        admit(state, "first", "second")
        return {node_id: "it does not answer" for node_id in nodes if node_id == "second"}

    def admit(state: Path, *names: str) -> None:
        nodes = dict.fromkeys(names, "a key")
        (state / "admitted.json").write_bytes(msgspec.json.encode(Admitted(nodes)))

    admit(state, "first")
    monkeypatch.setattr(renewal, "_introduced", introduced)
    with pytest.raises(Refused, match="because second could not connect"):
        renewed(state)
    assert asked == [["first"], ["second"]]
