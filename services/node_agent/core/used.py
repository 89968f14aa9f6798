"""The record of how an attempt shares its devices, which `sharing/` fills in. Pure."""

import msgspec

from libs.common.model import GpuId


class Used(msgspec.Struct, frozen=True):
    """The way in which an attempt shares its devices; its marker notes it.

    `way` is recorded in JobStarted. `daemon` names its MPS daemon. `masks` are its compute units on
    each AMD device, one bit each, in hexadecimal.
    """

    way: str = ""
    daemon: str = ""
    masks: dict[GpuId, str] = {}
