"""Requests about leases. Pure. Tests: tests/unit/test_lease_profiles.py."""

from typing import Final

import msgspec

from libs.common.errors import Refused
from libs.common.facts import LeaseProfileSet
from libs.common.state.cluster import Cluster
from libs.common.timing import PROFILES, of_profile
from services.api_gateway.intents import job_intents
from services.api_gateway.intents.fields import convert
from services.api_gateway.problems import Problem


class LeasesBody(msgspec.Struct, frozen=True, kw_only=True):
    """The lease profile: `default`, or `fast`, with which a lost node is noticed after 4 s."""

    profile: str
    user: str = ""


FIELDS: Final = LeasesBody.__struct_fields__
# Profiles that some agent may still go by.
FORMER_MAX: Final = 8


def chosen_profile(cluster: Cluster, body: object) -> LeaseProfileSet | None:
    """Return the fact for `POST /v1/leases`; None if the profile is in force.

    Raises Refused for an unknown profile, and Problem 409 before the first scheduler's term.
    """
    values = job_intents.body_fields(body, FIELDS)
    user = job_intents.take_user(values)
    profile = convert(values, LeasesBody).profile
    if profile not in PROFILES:
        raise Refused(f"profile: {profile[:64]!r} is unknown: give one of {', '.join(PROFILES)}")
    if not cluster.configured:
        raise Problem(409, "the cluster has no timing yet: wait until its first scheduler runs")
    if len(cluster.former) >= FORMER_MAX:
        raise Problem(409, "the profile changes too often: wait until GET /v1/leases is settled")
    timing = of_profile(profile, cluster.configured_timing)
    if (profile, timing) == (cluster.profile, cluster.timing):
        return None
    return LeaseProfileSet(profile=profile, timing=timing, user=user)
