"""The container of a job in flags and job files: the resulting request, and wrong values."""

from typing import Any

import click
import pytest

from libs.cli.flags.jobflags import allocation_flags, job_body, job_flags
from libs.cli.flags.modelflags import model_body, model_flags
from libs.cli.formats.container_fields import read_mount
from libs.cli.formats.jobfile import read_jobs
from libs.common.container_spec import ContainerSpec, Mount
from libs.common.errors import Refused
from libs.common.model import JobId, TenantId
from services.api_gateway.intents.job_intents import submission
from services.api_gateway.intents.model_intents import deployment

FLAGS = (
    "--image=i:1",
    "--entrypoint=python -m",
    "--user=1000",
    "--mount=/data/sets:/data:ro",
    "--mount=/scratch:/s",
    "--cache=pip",
    "--shm-size=1GiB",
)
BODY = {
    "entrypoint": ["python", "-m"],
    "user": "1000",
    "mounts": [
        {"source": "/data/sets", "target": "/data", "read_only": True},
        {"source": "/scratch", "target": "/s", "read_only": False},
    ],
    "caches": ["pip"],
    "shm_bytes": 1 << 30,
}
SPEC = ContainerSpec(
    entrypoint=("python", "-m"),
    user="1000",
    mounts=(Mount("/data/sets", "/data", True), Mount("/scratch", "/s")),
    caches=("pip",),
    shm_bytes=1 << 30,
)


def values(*flags: str, of: Any = job_flags) -> dict[str, Any]:
    @click.command()
    @of
    def verb(**given: object) -> dict[str, object]:
        return given

    found: dict[str, Any] = verb.main(list(flags), standalone_mode=False)
    return found


def test_flags_of_a_container_become_one_object_that_the_gateway_takes() -> None:
    body = job_body(("x",), "ann", values(*FLAGS))
    assert body["container"] == BODY and body["image"] == "i:1"
    assert {"entrypoint", "mounts", "caches", "shm_size", "container_user"}.isdisjoint(body)
    assert submission(body, JobId("j")).spec.container == SPEC


def test_a_job_without_such_flags_has_no_container() -> None:
    assert "container" not in job_body(("x",), "ann", values())


def test_an_empty_entry_point_removes_the_image_s() -> None:
    body = job_body(("x",), "ann", values("--image=i:1", "--entrypoint="))
    assert body["container"] == {"entrypoint": []}


def test_models_and_allocations_have_the_flags_too() -> None:
    body = model_body((), "ann", values(*FLAGS, of=model_flags))
    assert body["container"] == BODY
    assert deployment({"name": "m", **body}, None, TenantId("t")).spec.container == SPEC
    given = values("--image=i:1", "--shm-size=1GiB", of=allocation_flags)
    assert job_body((), "ann", {"upload": None, **given})["container"] == {"shm_bytes": 1 << 30}


@pytest.mark.parametrize("flag", ["--mount=/a", "--mount=/a:/b:rx", "--shm-size=x", "--mount=:/b"])
def test_wrong_values_are_usage_errors(flag: str) -> None:
    with pytest.raises(click.UsageError):
        job_body(("x",), "ann", values("--image=i:1", flag))


def test_a_mount_may_say_that_it_is_written() -> None:
    assert read_mount("/a:/b:rw") == {"source": "/a", "target": "/b", "read_only": False}


FILE = """\
image: i:1
entrypoint: [python, -m]
container_user: "1000"
container_workdir: /w
mounts: [/data/sets:/data:ro, /scratch:/s]
caches: pip
shm_size: 1GiB
"""


def test_a_job_file_has_the_same_keys_and_needs_no_command() -> None:
    (written,) = read_jobs(FILE, "j.yaml")
    assert written.job == {
        "image": "i:1",
        "container": {**BODY, "workdir": "/w", "shm_bytes": "1GiB"},
    }
    assert submission(written.job, JobId("j")).spec.container is not None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("image: i\nmounts: [/a]", "j.yaml:2: '/a' is not a mount: write SOURCE:TARGET"),
        ("image: i\nmounts: /a", "j.yaml:2: 'mounts' must be a list of mounts"),
        ("gpus: 1", "j.yaml:1: 'command' is missing"),
    ],
)
def test_a_wrong_key_of_a_container_names_its_line(text: str, expected: str) -> None:
    with pytest.raises(Refused) as caught:
        read_jobs(text, "j.yaml")
    assert str(caught.value).startswith(expected)
