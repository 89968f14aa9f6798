"""The request to a container engine: user, limits, devices by vendor, and names of images."""

from typing import Any

import pytest

from libs.common.container_spec import ContainerSpec, Scratch
from libs.common.errors import Refused
from libs.common.model import Gpu, GpuId, JobId, JobSpec
from services.api_gateway.intents.job_intents import submission
from services.node_agent.runtimes.container import (
    INIT,
    TETHER,
    Host,
    Image,
    body_of,
    is_own_user,
    mounted,
    words_of,
)
from services.node_agent.runtimes.faults import NoContainer

FILES = {
    GpuId("G0"): ("/dev/dri/card0", "/dev/dri/renderD128"),
    GpuId("G1"): ("/dev/dri/renderD129",),
}
IMAGE = Image(id="sha256:1", entrypoint=("own",), command=("default",), user="1000")
HOST = Host(init="/x/init", files=FILES, cdi={}, processes_max=100, user="0:0")


def gpu(index: int, vendor: str) -> Gpu:
    return Gpu(
        uuid=GpuId(f"G{index}"), index=index, vendor=vendor, model="model", memory_bytes=1 << 30
    )


def host_config(*held: Gpu, host: Host = HOST, **wish: Any) -> dict[str, Any]:
    env = {"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in held)}
    found: dict[str, Any] = body_of(
        spec=spec(**wish),
        argv=["true"],
        env=env,
        ids=[],
        held=held,
        limits={},
        host=host,
        image=IMAGE,
    )["HostConfig"]
    return found


def spec(**wish: Any) -> JobSpec:
    return JobSpec(command=("true",), image="i:1", **wish)


def test_command_replaces_the_entry_point_and_runs_as_the_jobs_user() -> None:
    body = body_of(
        spec=spec(stdin=True),
        argv=["python", "t.py"],
        env={"A": "1=2"},
        ids=[7, 8, 9],
        held=(),
        limits={},
        host=HOST,
        image=IMAGE,
    )
    assert (body["Image"], body["Entrypoint"], body["Cmd"]) == (
        "sha256:1",
        [INIT, TETHER, "python", "t.py"],
        [],
    )
    assert (body["Env"], body["User"], body["HostConfig"]["GroupAdd"], body["OpenStdin"]) == (
        ["A=1=2", "NVIDIA_VISIBLE_DEVICES=void"],
        "7:8",
        ["9"],
        True,
    )
    assert body["HostConfig"]["SecurityOpt"] == ["no-new-privileges"]
    assert (
        body_of(
            spec=spec(), argv=["true"], env={}, ids=[], held=(), limits={}, host=HOST, image=IMAGE
        )["User"]
        == "0:0"
    )


def test_bounds_of_the_host_are_the_container_s() -> None:
    body = body_of(
        spec=spec(memory_bytes=1 << 30, cpus_milli=1_500),
        argv=["true"],
        env={},
        ids=[],
        held=(),
        limits={"cpus": "0-3", "memory_nodes": "1"},
        host=HOST,
        image=IMAGE,
    )
    told = body["HostConfig"]
    assert (told["Memory"], told["MemorySwap"], told["NanoCpus"]) == (
        1 << 30,
        1 << 30,
        1_500_000_000,
    )
    assert (told["CpusetCpus"], told["CpusetMems"], told["PidsLimit"], told["ShmSize"]) == (
        "0-3",
        "1",
        100,
        1 << 29,
    )
    assert host_config()["ShmSize"] == 8 << 30


@pytest.mark.parametrize(
    ("held", "cdi", "told"),
    [
        ((), {}, "void"),
        (("nvidia",), {"G0": "nvidia.com/gpu=G0"}, "void"),
        (("amd",), {}, "void"),
        (("nvidia", "nvidia"), {}, "G0,G1"),
        (("nvidia", "nvidia"), {"G0": "nvidia.com/gpu=G0"}, "G0,G1"),
    ],
)
def test_an_image_cannot_name_devices_to_the_engine_s_default_runtime(
    held: tuple[str, ...], cdi: dict[str, str], told: str
) -> None:
    has = [gpu(index, vendor) for index, vendor in enumerate(held)]
    env = {"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in has)}
    body = body_of(
        spec=spec(),
        argv=["true"],
        env=env,
        ids=[],
        held=has,
        limits={},
        host=Host(init="/x/init", files=FILES, cdi=cdi, processes_max=100, user="0:0"),
        image=IMAGE,
    )
    assert [each for each in body["Env"] if each.startswith("NVIDIA_")] == [
        f"NVIDIA_VISIBLE_DEVICES={told}"
    ]


def test_nvidia_s_devices_are_named_to_cdi_or_to_its_own_runtime() -> None:
    named = {"G0": "nvidia.com/gpu=G0"}
    by_cdi = Host(init="/x/init", files={}, cdi=named, processes_max=100, user="0:0")
    assert host_config(gpu(0, "nvidia"), host=by_cdi)["DeviceRequests"] == [
        {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=G0"]}
    ]
    (asked,) = host_config(gpu(0, "nvidia"), gpu(1, "nvidia"))["DeviceRequests"]
    assert asked == {"Driver": "nvidia", "DeviceIDs": ["G0", "G1"], "Capabilities": [["gpu"]]}


def test_other_devices_go_by_their_files_and_simulated_ones_have_none() -> None:
    def paths(*held: Gpu) -> list[str]:
        return [each["PathOnHost"] for each in host_config(*held).get("Devices", [])]

    assert paths(gpu(0, "amd")) == ["/dev/kfd", "/dev/dri/card0", "/dev/dri/renderD128"]
    assert paths(gpu(1, "intel")) == ["/dev/dri/renderD129"]
    assert paths(gpu(2, "intel")) == paths(gpu(0, "simulated")) == []
    assert "DeviceRequests" not in host_config(gpu(0, "simulated"))


@pytest.mark.parametrize("vendor", ["amd", "intel", "simulated"])
def test_devices_of_every_vendor_go_by_cdi_where_a_file_names_them(vendor: str) -> None:
    named = {"G0": "example.com/gpu=G0", "G1": "example.com/gpu=G1"}
    host = Host(init="/x/init", files=FILES, cdi=named, processes_max=100, user="0:0")
    config = host_config(gpu(0, vendor), gpu(1, vendor), host=host)
    assert config["DeviceRequests"] == [{"Driver": "cdi", "DeviceIDs": [*named.values()]}]
    assert "Devices" not in config


def test_a_mount_says_whether_it_is_written() -> None:
    assert mounted("/a", "/b") == {
        "Type": "bind",
        "Source": "/a",
        "Target": "/b",
        "ReadOnly": False,
    }


@pytest.mark.parametrize(
    "image",
    [
        "python:3.11",
        "a/b",
        "registry.example:5000/team/train@sha256:" + "0" * 64,
        "localhost/x_y:1",
    ],
)
def test_an_image_is_named_as_engines_name_it(image: str) -> None:
    assert submission({"command": ["true"], "image": image}, JobId("j")).spec.image == image


@pytest.mark.parametrize("image", ["-v", "a b", "A/b", "../x", "a?x=1", "x" * 400])
def test_invalid_image_name_is_refused(image: str) -> None:
    with pytest.raises(Refused, match="is not an image name"):
        submission({"command": ["true"], "image": image}, JobId("j"))


def words(image: Image, argv: tuple[str, ...], **wish: Any) -> list[str]:
    container = ContainerSpec(**wish)
    return words_of(JobSpec(command=argv, image="i:1", container=container), argv, image)


def test_the_command_is_the_arguments_of_the_entry_point() -> None:
    both = Image(entrypoint=("serve",), command=("--help",))
    assert words(both, ("a", "b")) == ["serve", "a", "b"]
    assert words(both, ()) == ["serve", "--help"]
    assert words(Image(command=("bash",)), ()) == ["bash"]
    assert words(both, ("a",), entrypoint=("other", "-x")) == ["other", "-x", "a"]
    assert words(both, ("a",), entrypoint=()) == ["a"]


def test_a_container_without_anything_to_run_is_refused() -> None:
    with pytest.raises(NoContainer, match="give a command after --"):
        words(Image(), ())
    with pytest.raises(NoContainer, match="neither an entry point nor a command"):
        words(Image(entrypoint=("a",), command=("b",)), (), entrypoint=())


def test_jobs_older_than_containers_replace_the_entry_point_and_keep_their_user() -> None:
    assert words_of(spec(), ["true"], IMAGE) == ["true"]
    assert user(None, ids=[]) == "0:0"
    assert user(None, ids=[7, 8, 9]) == "7:8"


def user(container: ContainerSpec | None, ids: list[int], agent: str = "0:0") -> str:
    host = Host(init="/x", files={}, cdi={}, processes_max=1, user=agent, users=((1_000, 1_999),))
    found: str = body_of(
        spec=spec(container=container),
        argv=["true"],
        env={},
        ids=ids,
        held=(),
        limits={},
        host=host,
        image=IMAGE,
    )["User"]
    return found


def test_the_image_chooses_its_user_only_where_the_node_or_its_user_is_root_s() -> None:
    asked = ContainerSpec(user="app")
    assert user(ContainerSpec(), ids=[]) == "1000"
    assert user(asked, ids=[]) == "app"
    assert user(ContainerSpec(), ids=[7, 8, 9]) == "1000:1000"
    assert user(ContainerSpec(), ids=[], agent="500:500") == "1000:1000"
    with pytest.raises(NoContainer):
        user(asked, ids=[7, 8, 9])
    with pytest.raises(NoContainer):
        user(ContainerSpec(user="0"), ids=[], agent="500:500")


def test_shared_memory_and_scratch_in_memory_have_their_sizes() -> None:
    scratch = (Scratch("/a", 1 << 20, True), Scratch("/b", 0, True), Scratch("/c"))
    told = host_config(container=ContainerSpec(shm_bytes=1 << 30, scratch=scratch))
    assert told["ShmSize"] == 1 << 30
    assert told["Tmpfs"] == {
        "/a": "rw,exec,nosuid,nodev,mode=1777,size=1048576",
        "/b": "rw,exec,nosuid,nodev,mode=1777",
    }
    assert host_config(container=ContainerSpec())["ShmSize"] == 8 << 30


def test_no_option_of_a_container_makes_it_privileged() -> None:
    wish = ContainerSpec(user="0", entrypoint=("a",), shm_bytes=1 << 30)
    told = host_config(container=wish)
    assert told["SecurityOpt"] == ["no-new-privileges"]
    assert {"Privileged", "CapAdd", "PidMode", "UsernsMode", "Binds"}.isdisjoint(told)


@pytest.mark.parametrize(
    ("user", "ids", "agent", "is_own"),
    [
        ("7:8", [7, 8, 9], "0:0", True),
        ("7:9", [7, 8, 9], "0:0", False),
        ("1005:1005", [7, 8], "0:0", False),
        ("1000", [], "0:0", True),
        ("1000:1000", [], "1000:1000", True),
        ("1005:1005", [], "1000:1000", False),
    ],
)
def test_a_containers_user_is_the_jobs_own_or_root_where_jobs_are_root(
    user: str, ids: list[int], agent: str, is_own: bool
) -> None:
    assert is_own_user(user, ids, Host("/x/init", FILES, {}, 100, agent)) == is_own
