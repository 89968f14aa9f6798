"""MIG through NVML: a card's profiles, and the creation, listing and removal of its instances.

A GPU instance is created with one compute instance over all of it. If the creation fails half-way,
the GPU instance is removed; if that fails too, the error has both reasons. The driver's own
placements count, not a table. Tests: tests/drivers/test_nvidia_mig.py.
"""

from collections.abc import Iterator
from ctypes import byref, c_uint
from typing import Any, Final, NamedTuple, assert_never

from services.node_agent.drivers import readings as r
from services.node_agent.drivers.readings import Done, MigCommand, MigInstance
from services.node_agent.drivers.vendors import Refusal, words

COMPUTE_INSTANCES_MAX: Final = 8
# No profile has more places, and no card more instances.
PLACES_MAX: Final = 16


class Profile(NamedTuple):
    """A MIG profile: its compute slices, and the largest number of its instances on a card."""

    name: str
    number: int
    slices: int
    most: int


def profiles(nvml: Any, handle: Any) -> list[Profile]:  # noqa: ANN401  the binding is not typed
    """Yield the card's profiles in NVML's order; none if the driver does not name them."""
    return list(_profiles(nvml, handle))


def _profiles(nvml: Any, handle: Any) -> Iterator[Profile]:  # noqa: ANN401
    for index in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            found = nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, index)
        except nvml.NVMLError:
            continue
        name = found.name if isinstance(found.name, str) else found.name.decode()
        yield Profile(name.removeprefix("MIG "), found.id, found.sliceCount, found.instanceCount)


def apply(nvml: Any, handle: Any, command: MigCommand) -> Done:  # noqa: ANN401
    """Carry out a MIG command. Raises Refusal and the errors of NVML."""
    match command:
        case r.SetMigMode(on):
            nvml.nvmlDeviceSetMigMode(handle, int(on))
            return Done("" if nvml.nvmlDeviceGetMigMode(handle)[0] == int(on) else r.AFTER_RESET)
        case r.CreateMigInstance(profile, start):
            return Done(instances=(_create(nvml, handle, profile, start),))
        case r.DestroyMigInstance(number):
            _destroy(nvml, nvml.nvmlDeviceGetGpuInstanceById(handle, number))
            return Done()
        case r.ListMigInstances():
            return Done(
                instances=tuple(sorted(_instances(nvml, handle), key=lambda each: each.start))
            )
        case _:
            assert_never(command)


def _create(nvml: Any, handle: Any, name: str, start: int) -> MigInstance:  # noqa: ANN401
    profile = next((each for each in profiles(nvml, handle) if each.name == name), None)
    if profile is None:
        raise Refusal(f"the card has no profile {name}")
    made = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(
        handle, profile.number, byref(_place(nvml, handle, profile, start))
    )
    try:
        nvml.nvmlGpuInstanceCreateComputeInstance(made, _whole_profile(nvml, made, profile.slices))
        found = _instance(nvml, made, name, _uuids(nvml, handle))
        if not found.uuid:
            raise Refusal(f"the driver names no MIG device for instance {found.number}")
    except (nvml.NVMLError, Refusal) as error:
        _take_back(nvml, made, error)
        raise
    return found


def _place(nvml: Any, handle: Any, profile: Profile, start: int) -> Any:  # noqa: ANN401
    """Return the driver's placement that begins at this slice."""
    found, count = (nvml.c_nvmlGpuInstancePlacement_t * PLACES_MAX)(), c_uint(PLACES_MAX)
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile.number, found, byref(count))
    legal = {each.start: each for each in found[: count.value]}
    if start not in legal:
        raise Refusal(
            f"{profile.name} cannot begin at slice {start} of this card, but at "
            f"{', '.join(map(str, sorted(legal)))}"
        )
    return legal[start]


def _whole_profile(nvml: Any, made: Any, slices: int) -> int:  # noqa: ANN401
    """Return the profile of a compute instance over all of a GPU instance."""
    for index in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            found = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                made, index, nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
            )
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            continue
        if found.sliceCount == slices:
            return int(found.id)
    raise Refusal(f"the driver has no compute instance of {slices} slices")


def _take_back(nvml: Any, made: Any, why: Exception) -> None:  # noqa: ANN401
    try:
        _destroy(nvml, made)
    except nvml.NVMLError as error:
        raise Refusal(
            f"{words(why)}; and what was made of it could not be removed: {words(error)}"
        ) from error


def _instances(nvml: Any, handle: Any) -> Iterator[MigInstance]:  # noqa: ANN401
    if not nvml.nvmlDeviceGetMigMode(handle)[0]:
        return
    uuids = _uuids(nvml, handle)
    for profile in profiles(nvml, handle):
        found, count = (nvml.c_nvmlGpuInstance_t * max(PLACES_MAX, profile.most))(), c_uint(0)
        nvml.nvmlDeviceGetGpuInstances(handle, profile.number, found, byref(count))
        for made in found[: count.value]:
            yield _instance(nvml, made, profile.name, uuids)


def _instance(nvml: Any, made: Any, profile: str, uuids: dict[int, str]) -> MigInstance:  # noqa: ANN401
    info = nvml.nvmlGpuInstanceGetInfo(made)
    return MigInstance(
        number=info.id,
        uuid=uuids.get(info.id, ""),
        profile=profile,
        start=info.placement.start,
        size=info.placement.size,
    )


def _uuids(nvml: Any, handle: Any) -> dict[int, str]:  # noqa: ANN401
    """Return the UUIDs of compute instances by the number of their GPU instance."""
    found = {}
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError_NotFound:
            continue
        found[int(nvml.nvmlDeviceGetGpuInstanceId(device))] = str(nvml.nvmlDeviceGetUUID(device))
    return found


def _destroy(nvml: Any, made: Any) -> None:  # noqa: ANN401
    for number in range(COMPUTE_INSTANCES_MAX):
        try:
            inner = nvml.nvmlGpuInstanceGetComputeInstanceById(made, number)
        except nvml.NVMLError_NotFound:
            continue
        nvml.nvmlComputeInstanceDestroy(inner)
    nvml.nvmlGpuInstanceDestroy(made)
