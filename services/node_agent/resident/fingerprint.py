"""The key of compile products: two starts with the same key may share them.

Pure. The key covers the engine (image, or command and versions of its packages), the GPU's
architecture, the driver's major version, the model's configuration, and all flags and variables.
Tests: tests/unit/test_resident_artefacts.py.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence

from libs.common.messages import StartOrder
from libs.common.model import Gpu


def key_of(
    order: StartOrder,
    gpus: Sequence[Gpu],
    drivers: Mapping[str, str],
    packages: Sequence[str],
    configuration: str,
) -> str:
    """Return the key of a replica's compile products.

    `packages` are the engine's packages with their versions, `configuration` the SHA-256 of the
    model's config.json; empty: unknown.
    """
    spec = order.spec
    held = {hold.uuid for hold in order.gpus}
    cards = sorted(
        (gpu.vendor, gpu.model, *gpu.compute_capability, gpu.memory_bytes)
        for gpu in gpus
        if gpu.uuid in held
    )
    vendors = sorted({card[0] for card in cards})
    parts = {
        "command": spec.command,
        "image": spec.image,
        "upload": spec.upload,
        "env": sorted(spec.env.items()),
        "gpus": cards,
        "drivers": [(vendor, major_of(drivers.get(vendor, ""))) for vendor in vendors],
        "packages": sorted(packages),
        "configuration": configuration,
    }
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def major_of(version: str) -> str:
    return version.split(".", 1)[0]
