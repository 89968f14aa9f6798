"""Images of scripts with #SBATCH lines: the resulting containers, warnings and refusals."""

from typing import Any

import pytest

from libs.cli.formats.job_fields import Written
from libs.cli.formats.sbatch import read_script
from libs.common.container_spec import ContainerSpec, Mount
from libs.common.errors import Refused
from libs.common.model import JobId
from services.api_gateway.intents.job_intents import submission

IMAGE = "#SBATCH --container-image=i:1"


def read(*lines: str) -> Written:
    return read_script("\n".join(("#!/bin/bash", *lines, "true")), "x.sbatch", {})


def fault(*lines: str) -> str:
    with pytest.raises(Refused) as caught:
        read(*lines)
    return str(caught.value)


def test_the_flags_of_pyxis_become_a_container() -> None:
    written = read(
        "#SBATCH --container-image=nvcr.io#nvidia/pytorch:24.05-py3 --gpus=1",
        "#SBATCH --container-mounts=/data/sets:/data:ro,/scratch",
        "#SBATCH --container-workdir=/workspace --no-container-mount-home",
    )
    spec = submission(written.job, JobId("j")).spec
    assert spec.image == "nvcr.io/nvidia/pytorch:24.05-py3"
    assert spec.command[:2] == ("/bin/bash", "-c") and spec.workdir == ""
    assert spec.container == ContainerSpec(
        entrypoint=(),
        workdir="/workspace",
        mounts=(Mount("/data/sets", "/data", True), Mount("/scratch", "/scratch")),
    )
    assert written.warnings == ()


def test_the_flags_of_muster_submit_stand_in_lines_of_their_own() -> None:
    written = read(
        "#MUSTER --image=team/train:1 --entrypoint='env -i' --user=1000 --shm-size=2GiB",
        "#MUSTER --mount=/a:/b --mount=/c:/d:ro --cache=pip,uv --cache=own",
    )
    spec = submission(written.job, JobId("j")).spec
    assert spec.image == "team/train:1"
    assert spec.container == ContainerSpec(
        entrypoint=("env", "-i"),
        user="1000",
        mounts=(Mount("/a", "/b"), Mount("/c", "/d", True)),
        caches=("pip", "uv", "own"),
        shm_bytes=2 << 30,
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", {"entrypoint": []}),
        ("#SBATCH --no-container-entrypoint", {"entrypoint": []}),
        ("#SBATCH --container-entrypoint", None),
    ],
)
def test_the_entry_point_of_the_image_is_run_only_if_asked_for(line: str, expected: Any) -> None:
    assert read(IMAGE, line).job.get("container") == expected


def test_an_array_runs_in_containers_too() -> None:
    job = read(IMAGE, "#SBATCH --array=0-3%2").job
    assert (job["array"], job["image"]) == ("0-3%2", "i:1")
    assert submission(job, JobId("j")).spec.container is not None


@pytest.mark.parametrize(
    ("given", "image"),
    [
        ("docker://alpine", "alpine"),
        ("docker://registry.example#team/x", "registry.example/team/x"),
        ("dockerd://x:1", "x:1"),
        ("x@sha256:1", "x@sha256:1"),
    ],
)
def test_images_are_named_as_enroot_names_them(given: str, image: str) -> None:
    assert read(f"#SBATCH --container-image={given}").job["image"] == image


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("#SBATCH --container-image=/images/x.sqsh",), "x.sbatch:2: --container-image=/images"),
        (("#SBATCH --container-image=./x",), "an image in a file is not supported"),
        (("#SBATCH --container-image=x.sqsh",), "an image in a file is not supported"),
        (("#SBATCH --container-image=ann@reg.example#x",), "use muster secret set --registry"),
        (
            (IMAGE, "#SBATCH --container-mounts=/a:/b:x-create=dir"),
            "x.sbatch:3: --container-mounts",
        ),
        ((IMAGE, "#MUSTER --mount=/a"), "x.sbatch:3: --mount=/a: '/a' is not a mount"),
        ((IMAGE, "#MUSTER --shm-size=x"), "x.sbatch:3: --shm-size=x: 'x' is not a size"),
        ((IMAGE, "#MUSTER --image=b"), "x.sbatch:3: --image=b: --container-image names an image"),
    ],
)
def test_what_a_container_cannot_be_is_refused_with_its_line(
    lines: tuple[str, ...], expected: str
) -> None:
    assert expected in fault(*lines)


def test_flags_of_a_container_without_an_image_are_warnings() -> None:
    written = read("#SBATCH --container-mounts=/a:/b", "#MUSTER --cache=pip")
    assert "image" not in written.job and "container" not in written.job
    assert [each.split(": not")[0] for each in written.warnings] == [
        "x.sbatch:2: --container-mounts",
        "x.sbatch:3: --cache",
    ]
