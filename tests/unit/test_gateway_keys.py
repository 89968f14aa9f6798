"""A key is found by its hash: an accepted one has a principal, any other none, and the file may change while the gateway runs."""

from pathlib import Path

import pytest

from libs.common.errors import Refused
from services.api_gateway.auth import Keys, Principal, hash_key


def test_a_key_of_the_file_is_an_administrator_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"{hash_key('one')} ann\n{hash_key('two').upper()}\n")
    keys = Keys(str(tmp_path / "keys"))
    assert keys.principal("one") == Principal(f"host-{hash_key('one')[:8]}", "default", "ann", "admin")
    assert keys.principal("two") == Principal(f"host-{hash_key('two')[:8]}", "default", "host", "admin")


def test_any_other_key_has_no_principal(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"{hash_key('one')}\n")
    keys = Keys(str(tmp_path / "keys"))
    assert [keys.principal(key) for key in ("", "two", "one ", hash_key("one"))] == [None] * 4
    assert Keys("").principal("one") is None


def test_a_changed_file_counts_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{hash_key('one')}\n")
    keys = Keys(str(path))
    path.write_text(f"{hash_key('two')} longer\n")
    keys.refresh()
    assert keys.principal("one") is None and keys.principal("two") is not None
    path.write_text("no hash")
    with pytest.raises(Refused, match="line 1"):
        keys.refresh()
    assert keys.principal("two") is not None
