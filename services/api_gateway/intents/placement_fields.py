"""Fields of a request about where its job runs: reading the forms that users write, and checking
them.

Pure, shared by jobs, allocations and models. The scheduler decides whether the cluster has such a
node. Tests: tests/unit/test_gateway_placement_fields.py.
"""

import re
from typing import Any, Final

from libs.common import model
from libs.common.devices import mig
from libs.common.errors import Refused
from libs.common.model import BYTES_MAX, ID_PATTERN, LEVEL_WORDS, LEVELS, WHOLE_GPU, JobSpec
from libs.common.quantities import SIZES, bytes_of
from services.api_gateway.intents.fields import check_range

# Fields that users may write instead of a field of JobSpec.
ALIASES: Final = (
    "gpu_memory",
    "gpu_memory_min",
    "cpus",
    "memory",
    "pool",
    "host_pool",
    "compute_capability",
    "gpu_affinity",
)
WORDS_MAX: Final = 64
WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/+:-]{0,127}")
CPUS_MILLI_MAX: Final = 10_000_000
RANGES: Final = (
    ("cpus_milli", 0, CPUS_MILLI_MAX),
    ("memory_bytes", 0, BYTES_MAX),
    ("gpu_memory_bytes", 0, BYTES_MAX),
    ("memory_total_min_bytes", 0, BYTES_MAX),
    ("pool_bytes", 0, BYTES_MAX),
    ("host_pool_bytes", 0, BYTES_MAX),
)
# The form of a strategy's name. The scheduler knows which exist, because plug-ins add some.
STRATEGY: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
CAPABILITY_MAX: Final = 999
CAPABILITY: Final = re.compile(r"(\d{1,3})\.(\d{1,3})")


def take_aliases(values: dict[str, Any]) -> None:
    """Replace aliases and texts by fields of JobSpec, in place. Raises Refused."""
    for alias, name, read in (
        ("gpu_memory", "gpu_memory_bytes", size_bytes),
        ("gpu_memory_min", "memory_total_min_bytes", size_bytes),
        ("cpus", "cpus_milli", thousandths),
        ("memory", "memory_bytes", size_bytes),
        ("pool", "pool_bytes", size_bytes),
        ("host_pool", "host_pool_bytes", size_bytes),
        ("compute_capability", "compute_capability_min", capability),
        ("gpu_affinity", "gpu_uuids", unchanged),
    ):
        if alias in values:
            if name in values:
                raise Refused(
                    f"{alias}: {name} is given too, and both mean the same: give one of them"
                )
            values[name] = read(values.pop(alias), alias)
    for name in ("model", "node_list", "gpu_uuids"):
        if isinstance(values.get(name), str):
            values[name] = [word for word in re.split(r"[|,]", values[name]) if word]


def unchanged(value: object, _: str) -> object:
    """Return the value: the alias is only another name."""
    return value


def size_bytes(value: object, field: str) -> int:
    """Return the bytes of a number or of a text for `bytes_of`. Raises Refused."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        if isinstance(value, str):
            return bytes_of(value)
    except ValueError as error:
        raise Refused(f"{field}: {error}") from None
    raise Refused(f"{field}: {value!r} is not a size: {SIZES}")


def thousandths(value: object, field: str) -> int:
    """Return CPUs in thousandths: 1500 for 1.5. Raises Refused."""
    try:
        number = (
            float(value)
            if isinstance(value, int | float | str) and not isinstance(value, bool)
            else -1.0
        )
    except ValueError:
        number = -1.0
    if not 0 <= number <= CPUS_MILLI_MAX / 1_000:
        raise Refused(
            f"{field}: {value!r} is not a number of CPUs: give 0 to {CPUS_MILLI_MAX // 1_000}, for "
            "example 4 or 0.5"
        )
    return round(number * 1_000)


def capability(value: object, field: str) -> list[int]:
    """Return [8, 0] for "8.0". Raises Refused."""
    found = CAPABILITY.fullmatch(str(value))
    if found is None:
        raise Refused(f'{field}: {value!r} is not a compute capability: write for example "8.0"')
    return [int(found[1]), int(found[2])]


def check_capability(least: tuple[int, int]) -> None:
    """Raise Refused for a version that no device can have."""
    for number in least:
        check_range("compute_capability_min", number, 0, CAPABILITY_MAX)


def check_placement(spec: JobSpec) -> None:
    """Check the placement fields of a job. Raises Refused."""
    _check_without_gpus(spec)
    _check_parts(spec)
    _check_words(spec)
    for level in LEVELS:
        if getattr(spec, level) not in LEVEL_WORDS:
            raise Refused(
                f"{level}: {getattr(spec, level)!r} is not known: give one of "
                f"{', '.join(LEVEL_WORDS)}"
            )


def _check_without_gpus(spec: JobSpec) -> None:
    if spec.gpus == 0 and not spec.cpus_milli:
        raise Refused(
            "cpus: missing: a job without GPUs must say how many CPUs it needs: give cpus, for "
            "example 1"
        )
    if spec.gpus == 0 and (spec.gpu_memory_bytes or spec.mig_profile or spec.gpu_uuids):
        raise Refused(
            "gpus: the job asks for no GPU, but for GPU memory, a MIG profile or certain GPUs: "
            "leave these out, or ask for at least 1 GPU"
        )


def _check_parts(spec: JobSpec) -> None:
    """Raise Refused unless the part of a device is given in one way that fits its isolation."""
    ways = [spec.gpu_share < WHOLE_GPU, spec.gpu_memory_bytes > 0, spec.mig_profile != ""]
    if sum(ways) > 1:
        raise Refused(
            "fraction, gpu_memory and mig_profile: each of them asks for a part of a GPU: give one "
            "of them"
        )
    if spec.mig_profile and spec.mig_profile not in mig.PROFILES:
        raise Refused(
            f"mig_profile: {spec.mig_profile!r} is not known: give one of {', '.join(mig.PROFILES)}"
        )
    if spec.isolation not in model.ISOLATIONS:
        raise Refused(
            f"isolation: {spec.isolation!r} is not known: leave it out, or give one of "
            f"{', '.join(filter(None, model.ISOLATIONS))}"
        )
    if spec.isolation == model.MIG and not spec.mig_profile:
        raise Refused(
            "mig_profile: missing: isolation mig needs a profile: give one, for example 1g.10gb"
        )
    if spec.mig_profile and spec.isolation not in ("", model.MIG):
        raise Refused(f"isolation: {spec.isolation} does not apply to a MIG instance: leave it out")


def _check_words(spec: JobSpec) -> None:
    if spec.vendor and not WORD.fullmatch(spec.vendor):
        raise Refused(f"vendor: {spec.vendor[:64]!r} is not valid: give for example nvidia or amd")
    for name in ("model", "node_list", "gpu_uuids"):
        words = getattr(spec, name)
        if len(words) > model.NODES_MAX:
            raise Refused(f"{name}: {len(words)} are too many: give at most {model.NODES_MAX}")
        if bad := next((word for word in words if not WORD.fullmatch(word)), ""):
            raise Refused(
                f"{name}: {bad[:64]!r} is not valid: begin with a letter or digit, then use "
                "letters, digits, spaces and ._/+:- (at most 128 characters)"
            )
    if bad := next((node for node in spec.node_list if not ID_PATTERN.fullmatch(node)), ""):
        raise Refused(
            f"node_list: {bad[:64]!r} is not a node name: use small letters, digits and - (at "
            "most 63 characters)"
        )
    for name in ("node_labels", "anti_affinity"):
        labels = getattr(spec, name)
        if len(labels) > WORDS_MAX or not all(
            WORD.fullmatch(key) and (not value or WORD.fullmatch(value))
            for key, value in labels.items()
        ):
            raise Refused(
                f"{name}: not valid: give at most {WORDS_MAX} labels of letters, digits, spaces "
                "and ._/+:-"
            )
    if spec.placement and not STRATEGY.fullmatch(spec.placement):
        raise Refused(
            f"placement: {spec.placement[:64]!r} is not the name of a strategy: leave it out for "
            "the cluster's default, or give for example round_robin"
        )
