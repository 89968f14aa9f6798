"""Processes of services as they report themselves: kept, away, forgotten, and bounded."""

from types import SimpleNamespace
from typing import cast

from libs.common import subjects
from libs.common.messages.member_messages import MemberSign, decode, encode
from libs.common.transport.bus_memory import MemoryBus
from services.api_gateway.control_plane.members import (
    AWAY_S,
    FORGOTTEN_S,
    MEMBERS_MAX,
    NS,
    Members,
)
from services.api_gateway.control_plane.plane import ControlPlane
from services.api_gateway.views.control_plane import members_shown


class Hand:
    """A clock that is moved by hand."""

    now = 1_000 * NS

    def boot_ns(self) -> int:
        return self.now

    def wall_ns(self) -> int:
        return self.now


async def heard(members: Members, service: str, instance: str, sign: MemberSign) -> None:
    await members._on_sign(subjects.member(service, instance), encode(sign))


def watching(read: int = 10) -> Members:
    return Members(MemoryBus(), Hand(), lambda: read)


def test_a_sign_is_read_as_it_was_sent() -> None:
    sign = MemberSign(True, 7, 12, "1.0")
    assert decode(encode(sign)) == sign


async def test_lag_is_what_the_process_had_not_read_when_its_sign_came() -> None:
    members = watching(read=10)
    await heard(members, "scheduler", "a", MemberSign(True, 3, 10))
    await heard(members, "scheduler", "b", MemberSign(False, 3, 4))
    await heard(members, "audit", "a", MemberSign(False, 0, 0))
    assert [(each.service, each.instance, each.lag) for each in members.known()] == [
        ("audit", "a", None),
        ("scheduler", "a", 0),
        ("scheduler", "b", 6),
    ]


async def test_silent_process_is_away_and_later_forgotten() -> None:
    members = watching()
    clock = members.clock
    assert isinstance(clock, Hand)
    await heard(members, "quota", "a", MemberSign(True, 3, 10))
    (member,) = members.known()
    assert not members.is_away(member)
    clock.now += AWAY_S * NS + 1
    assert members.is_away(member)
    clock.now += FORGOTTEN_S * NS
    assert members.known() == []


async def test_names_without_end_and_junk_change_nothing() -> None:
    members = watching()
    await members._on_sign("members.quota.a", b"junk")
    for number in range(MEMBERS_MAX + 5):
        await heard(members, "quota", f"i{number}", MemberSign(False, 0, 1))
    assert len(members.known()) == MEMBERS_MAX
    await heard(members, "quota", "i0", MemberSign(True, 0, 9))
    assert members.heard["members.quota.i0"].sign.leads


async def test_a_leader_whose_term_another_has_ended_is_away() -> None:
    members = watching()
    await heard(members, "scheduler", "a", MemberSign(True, 7, 10, "1.0"))
    await heard(members, "scheduler", "b", MemberSign(True, 9, 10, "1.0"))
    await heard(members, "gateway", "a", MemberSign(False, 0, 10, "1.0"))
    plane = cast(ControlPlane, SimpleNamespace(members=members, clock=Hand()))
    shown = {(each.service, each.instance): each.state for each in members_shown(plane)}
    assert shown == {
        ("scheduler", "a"): "away",
        ("scheduler", "b"): "leader",
        ("gateway", "a"): "active",
    }
