"""`container` of a request: accepted forms, and a refusal that says what to do for all others."""

from typing import Any

import pytest

from libs.common.container_spec import (
    ContainerSpec,
    Mount,
    Scratch,
    registry_of,
    registry_secret,
    repository_of,
)
from libs.common.errors import Refused
from libs.common.model import JobId, JobSpec, TenantId
from libs.common.model_spec import ModelSpec
from libs.common.state import model_view
from libs.common.state.cluster import Model
from services.api_gateway.intents.allocation_intents import allocation
from services.api_gateway.intents.job_intents import submission
from services.api_gateway.intents.model_intents import deployment, redeployment

TENANT = TenantId("default")
WISH: dict[str, Any] = {
    "entrypoint": ["python"],
    "user": "1000:1000",
    "workdir": "/workspace",
    "mounts": [{"source": "/data/sets", "target": "/data", "read_only": True}],
    "scratch": [{"target": "/tmp", "size_bytes": 1024, "memory": True}],
    "caches": ["huggingface"],
    "shm_bytes": 1 << 30,
}


def spec(container: object = None, **more: Any) -> JobSpec:
    body = {"command": ["a"], "image": "i:1", **more}
    return submission(
        body | ({"container": container} if container is not None else {}), JobId("j")
    ).spec


def refusal(container: object, **more: Any) -> str:
    with pytest.raises(Refused) as caught:
        spec(container, **more)
    return str(caught.value)


def test_every_field_of_a_container_is_recorded() -> None:
    assert spec(WISH).container == ContainerSpec(
        entrypoint=("python",),
        user="1000:1000",
        workdir="/workspace",
        mounts=(Mount("/data/sets", "/data", True),),
        scratch=(Scratch("/tmp", 1024, True),),
        caches=("huggingface",),
        shm_bytes=1 << 30,
    )


def test_a_size_may_be_a_text() -> None:
    assert spec({"shm_bytes": "2GiB"}).container == ContainerSpec(shm_bytes=2 << 30)


def test_new_jobs_with_an_image_honour_its_entry_point_and_may_leave_the_command_to_it() -> None:
    assert spec().container == ContainerSpec()
    assert submission({"command": ["a"]}, JobId("j")).spec.container is None
    assert submission({"image": "i:1"}, JobId("j")).spec.command == ()
    with pytest.raises(Refused, match="command: missing"):
        submission({}, JobId("j"))
    with pytest.raises(Refused, match="command: empty"):
        submission({"command": []}, JobId("j"))


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        ("x", "container: not an object: give for example"),
        ({"mount": []}, "field of container 'mount' is not known: did you mean 'mounts'?"),
        ({"mounts": [{"source": "/a"}]}, "container.mounts[0].target: missing"),
        ({"entrypoint": [""]}, "container.entrypoint: the first word is empty"),
        ({"entrypoint": ["a\0"]}, "container.entrypoint: the first word is empty, or a word"),
        ({"entrypoint": ["a", "--token=abcdef"]}, "looks like a secret"),
        ({"user": "Ann"}, "container.user: 'Ann' is not valid"),
        ({"user": "4294967295"}, "container.user: '4294967295' is not valid"),
        ({"workdir": "a"}, "container.workdir: 'a' is not an absolute path"),
        ({"shm_bytes": "much"}, "container.shm_bytes: 'much' is not a size"),
        ({"shm_bytes": 1}, "container.shm_bytes: 1 is out of bounds"),
        ({"scratch": [{"target": "/a", "size_bytes": -1}]}, "container.scratch.size_bytes"),
        ({"caches": ["../x"]}, "container.caches: '../x' is not a name"),
        ({"caches": [str(number) for number in range(9)]}, "9 caches are too many"),
        ({"scratch": [{"target": f"/{n}"} for n in range(33)]}, "33 mounts and scratch are too"),
    ],
)
def test_what_a_container_cannot_be_is_refused_with_the_remedy(
    container: object, expected: str
) -> None:
    assert expected in refusal(container)


@pytest.mark.attack
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("/", "the whole file system of the node"),
        ("data", "is not an absolute path without . and .."),
        ("//data", "is not an absolute path"),
        ("/data/../etc", "is not an absolute path"),
        ("/data/", "is not an absolute path"),
        ("/a\0", "is not an absolute path"),
        ("/" + "a" * 1_024, "is not an absolute path"),
    ],
)
def test_a_mount_names_one_plain_directory_of_the_node(source: str, expected: str) -> None:
    assert expected in refusal({"mounts": [{"source": source, "target": "/x"}]})


@pytest.mark.parametrize(
    "target", ["/", "x", "/proc", "/proc/sys", "/dev/shm", "/sys", "/.muster-init"]
)
def test_a_target_never_hides_what_keeps_the_container_in(target: str) -> None:
    for wish in (
        {"mounts": [{"source": "/x", "target": target}]},
        {"scratch": [{"target": target}]},
    ):
        assert refusal(wish).startswith(f"container: the target {target!r} ")


def test_a_target_is_given_once() -> None:
    twice = {"caches": ["pip"], "scratch": [{"target": "/cache/pip"}]}
    assert "'/cache/pip' is given twice" in refusal(twice)


def test_a_job_without_an_image_has_no_container() -> None:
    with pytest.raises(Refused, match="the job has no image"):
        submission({"command": ["a"], "container": {}}, JobId("j"))


def test_a_model_s_replicas_take_over_its_container() -> None:
    made = deployment({"name": "m", "image": "i:1", "container": WISH}, None, TENANT).spec
    assert made.command == ()
    assert model_view.replica_spec(made, "m", 1).container == made.container
    with pytest.raises(Refused, match="command: missing"):
        deployment({"name": "m"}, None, TENANT)


def known(spec: ModelSpec) -> Model:
    return Model(name="m", spec=spec, tenant=TENANT, user="u", seq=1, replicas=1)


def test_a_redeployment_keeps_the_container_until_it_gives_another_or_no_image() -> None:
    wish = ContainerSpec(shm_bytes=1 << 30)
    before = known(ModelSpec(command=("a",), image="i:1", container=wish))
    older = known(ModelSpec(command=("a",), image="i:1"))
    assert redeployment({"gpus": 2}, before).spec.container == wish
    assert redeployment({"image": "i:2"}, before).spec.container == wish
    assert redeployment({"container": {}}, before).spec.container == ContainerSpec()
    assert redeployment({"image": ""}, before).spec.container is None
    assert redeployment({"gpus": 2}, older).spec.container is None
    assert redeployment({"image": "i:2"}, older).spec.container == ContainerSpec()


def test_an_allocation_in_a_container_waits_with_its_own_command() -> None:
    made = allocation({"image": "i:1", "container": {"shm_bytes": 1 << 20}}, JobId("j")).spec
    assert made.container == ContainerSpec(entrypoint=(), shm_bytes=1 << 20)
    assert made.command == ("sleep", "infinity")
    assert allocation({"image": "i:1"}, JobId("j")).spec.container == ContainerSpec(entrypoint=())
    assert allocation({}, JobId("j")).spec.container is None
    with pytest.raises(Refused, match="an allocation only waits"):
        allocation({"image": "i:1", "container": {"entrypoint": ["a"]}}, JobId("j"))
    with pytest.raises(Refused, match="container: not an object"):
        allocation({"image": "i:1", "container": 1}, JobId("j"))


@pytest.mark.parametrize(
    ("image", "host", "secret"),
    [
        ("python:3.11", "docker.io", "registry.docker.io"),
        ("team/train", "docker.io", "registry.docker.io"),
        ("localhost/x", "localhost", "registry.localhost"),
        ("reg.example:5000/team/x@sha256:1", "reg.example:5000", "registry.reg.example_5000"),
    ],
)
def test_an_image_names_its_registry_as_engines_read_it(image: str, host: str, secret: str) -> None:
    assert (registry_of(image), registry_secret(registry_of(image))) == (host, secret)


@pytest.mark.parametrize(
    ("image", "repository"),
    [
        ("busybox", "docker.io/library/busybox"),
        ("index.docker.io/busybox:1.36", "docker.io/library/busybox"),
        ("docker.io/team/x@sha256:ab", "docker.io/team/x"),
        ("r.example:5000/team/x:1@sha256:ab", "r.example:5000/team/x"),
        ("localhost/x", "localhost/x"),
    ],
)
def test_names_of_one_repository_are_one_name(image: str, repository: str) -> None:
    assert repository_of(image) == repository
