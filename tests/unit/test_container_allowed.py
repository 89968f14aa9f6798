"""The mounts and users that a node's administrator allows to containers."""

import pytest

from libs.common.container_spec import Mount
from libs.common.errors import Refused
from services.node_agent.runtimes.allowed import (
    NOTHING,
    Allowed,
    Found,
    Root,
    allowed_of,
    mount_of,
    place_of,
    user_of,
    working_directory,
)
from services.node_agent.runtimes.faults import NoContainer

ROOTS = (Root("/data", False), Root("/data/sets", True), Root("/models", True))
IDS = [70_001, 70_001, 44]


def test_settings_are_directories_and_ranges_of_ids() -> None:
    assert allowed_of("", " ") == NOTHING
    assert allowed_of(" /data/ ,/models:ro", "1000-1999, 65534") == Allowed(
        (Root("/data", False), Root("/models", True)), ((1_000, 1_999), (65_534, 65_534))
    )


@pytest.mark.attack
@pytest.mark.parametrize("text", ["data", "/", "//", "/:ro", "/a/..", ":ro"])
def test_the_whole_file_system_is_never_allowed(text: str) -> None:
    with pytest.raises(Refused, match=r"MUSTER_CONTAINER_MOUNTS: .* is not valid"):
        allowed_of(text, "")


@pytest.mark.parametrize("text", ["0", "0-5", "9-3", "ann", "1-4294967295"])
def test_root_is_never_allowed(text: str) -> None:
    with pytest.raises(Refused, match=r"MUSTER_CONTAINER_USERS: .* is not valid"):
        allowed_of("", text)


def test_a_mount_lies_below_the_nearest_directory_that_allows_it() -> None:
    assert place_of(Mount("/data", "/x"), ROOTS) == Found("/data", ())
    assert place_of(Mount("/data/a/b", "/x"), ROOTS) == Found("/data", ("a", "b"))
    assert place_of(Mount("/data/sets/a", "/x"), ROOTS) == Found("/data", ("sets", "a"))
    assert place_of(Mount("/data/sets/a", "/x", True), ROOTS) == Found("/data/sets", ("a",))


@pytest.mark.attack
@pytest.mark.parametrize("source", ["/etc", "/database", "/dat"])
def test_any_other_mount_is_refused_with_what_to_do(source: str) -> None:
    with pytest.raises(NoContainer, match=r"only what lies in /data, /data/sets:ro, /models:ro"):
        place_of(Mount(source, "/x"), ROOTS)
    with pytest.raises(NoContainer, match=r"lets jobs mount nothing .*ask its administrator"):
        place_of(Mount(source, "/x"), ())


def test_a_mount_for_the_runner_names_its_place_and_its_target() -> None:
    assert mount_of(Mount("/models/a", "/x", True), ROOTS) == {
        "root": "/models",
        "names": ("a",),
        "target": "/x",
        "read_only": True,
    }


def test_a_working_directory_lies_anywhere_for_the_jobs_own_user() -> None:
    mount = {"root": "/people/ann", "names": (), "target": "/people/ann", "read_only": False}
    assert working_directory("/people/ann", True, ROOTS) == mount | {
        "optional": True,
        "refusal": "",
    }


@pytest.mark.attack
@pytest.mark.parametrize(
    ("path", "names"),
    [("/data/run", ("run",)), ("/data/../data/a/./b", ("a", "b"))],
)
def test_a_working_directory_of_another_user_lies_where_mounts_may(
    path: str, names: tuple[str, ...]
) -> None:
    mount = {"root": "/data", "names": names, "target": path, "read_only": False}
    assert working_directory(path, False, ROOTS) == mount | {"optional": True, "refusal": ""}


@pytest.mark.attack
@pytest.mark.parametrize(
    "path", ["/people/alice", "/data/../people/alice", "/models/x", "//data/x"]
)
def test_any_other_working_directory_of_another_user_is_refused(path: str) -> None:
    refusal = working_directory(path, False, ROOTS)["refusal"]
    assert refusal.startswith("the container runs as another user than the job: mount /")


def test_a_directory_for_reading_is_mounted_for_reading_only() -> None:
    with pytest.raises(NoContainer, match="only read /models: add :ro to the mount"):
        place_of(Mount("/models/x", "/x"), ROOTS)
    assert place_of(Mount("/models/x", "/x", True), ROOTS) == Found("/models", ("x",))


@pytest.mark.parametrize(
    ("wanted", "image", "user"),
    [
        ("", "", "70001:70001"),
        ("", "root", "70001:70001"),
        ("", "0", "70001:70001"),
        ("", "app", "70001:70001"),
        ("", "1000", "1000:1000"),
        ("", "1000:1001", "1000:1001"),
        ("", "1000:0", "70001:70001"),
        ("", "3000", "70001:70001"),
        ("70001", "1000", "70001:70001"),
        ("70001:70001", "", "70001:70001"),
        ("1500", "1000", "1500:1500"),
    ],
)
def test_an_image_s_user_counts_if_the_node_allows_its_number(
    wanted: str, image: str, user: str
) -> None:
    assert user_of(wanted, image, IDS, [(1_000, 1_999)]) == user


@pytest.mark.parametrize("wanted", ["0", "root", "app", "1000:0", "2000", "70002", "70001:5"])
def test_a_user_that_the_node_does_not_allow_is_refused(wanted: str) -> None:
    with pytest.raises(NoContainer, match=r"the ids 1000-1999, 65534 .* never root"):
        user_of(wanted, "", IDS, [(1_000, 1_999), (65_534, 65_534)])
    with pytest.raises(NoContainer, match="may use no other user"):
        user_of(wanted, "", IDS, ())


def test_ids_that_other_jobs_run_under_are_not_allowed() -> None:
    users, taken = [(1_000, 99_999)], [(70_000, 79_999), (1_005, 1_005)]
    for wanted in ("70002", "1005", "1000:70002", "70001:1005"):
        with pytest.raises(NoContainer, match="never an id of other jobs"):
            user_of(wanted, "", IDS, users, taken)
    assert user_of("", "70002", IDS, users, taken) == "70001:70001"
    assert user_of("1000:70001", "", IDS, users, taken) == "1000:70001"
    assert user_of("1000", "", IDS, users, taken) == "1000:1000"
    assert user_of("1005", "", (1_005, 100), users, taken) == "1005:1005"
