"""The signs that a process of a service gives the gateways, regularly and without an answer.

Pure; typed MessagePack on `members.<service>.<instance>`, never stored. The subject names the
process, because only that service may publish there.
"""

import msgspec


class MemberSign(msgspec.Struct, frozen=True, array_like=True):
    """One sign of a process. `epoch` is the term that it leads or follows, `seq` the last commit
    that it has read; both are 0 if unknown. A service without a leader has `leads` for each.
    """

    leads: bool
    epoch: int
    seq: int
    version: str = ""


def encode(sign: MemberSign) -> bytes:
    return msgspec.msgpack.encode(sign)


def decode(data: bytes) -> MemberSign:
    """Raises msgspec.DecodeError."""
    return msgspec.msgpack.decode(data, type=MemberSign)
