"""Requests about destinations; no refusal quotes a URL's path or a key."""

import base64

import pytest

from libs.common.errors import Refused
from libs.common.facts import NotificationRemoved
from libs.common.folds.notification_fold import DESTINATIONS_MAX, OF_TENANT_MAX
from libs.common.model import TenantId
from libs.common.state.cluster import Cluster
from services.api_gateway.access.roles import MEMBER, OPERATOR, Principal
from services.api_gateway.notify import body
from services.api_gateway.notify.body import Fresh, Sealed, agreed, setting
from services.api_gateway.notify.messages import KEY_PREFIX
from services.api_gateway.problems import Denied, Problem
from tests.unit.test_notify_rules import destination

ADA = Principal("k1", "red", "ada", MEMBER)
BOB = Principal("k2", "red", "bob", MEMBER)
ROOT = Principal("k3", "red", "root", OPERATOR)
URL = "https://hooks.example/T1/SECRETPATH"
ID = "a2"
OLD = KEY_PREFIX + base64.b64encode(b"o" * 32).decode()
FRESH = KEY_PREFIX + base64.b64encode(b"f" * 32).decode()


def cluster(**changed: object) -> Cluster:
    return Cluster(notifications={"red.d": destination(**changed)})


def change(
    given: object,
    state: Cluster | None = None,
    by: Principal = ADA,
    stored: Sealed | None = None,
    name: str = "d",
) -> body.NotificationChange:
    return setting(
        body=given,
        cluster=state or Cluster(),
        principal=by,
        name=name,
        fresh=Fresh(FRESH, ID),
        stored=stored,
    )


def test_a_new_webhook_gets_a_key_and_the_fact_holds_no_secret() -> None:
    made = change({"webhook": URL, "kinds": ["job.*", "job.closed"], "own": True})
    assert made.sealed == Sealed(URL, FRESH, ID)
    assert made.fact.address_id == ID
    assert made.fact.kinds == ("job.", "job.closed") and made.fact.own
    assert "SECRETPATH" not in str(made.fact) and FRESH not in str(made.fact)
    assert (made.fact.shown, made.fact.version) == ("https://hooks.example", 1)


def test_slack_and_mail_have_no_key() -> None:
    assert change({"slack": URL}).sealed == Sealed(URL, id=ID)
    mail = change({"mail": "ann@example.org"})
    assert mail.sealed == Sealed("ann@example.org", id=ID)
    assert mail.fact.kinds == ("job.closed",)


def test_a_change_without_an_address_keeps_it() -> None:
    made = change({"failures": True}, cluster())
    assert made.sealed is None
    assert (made.fact.version, made.fact.shown, made.fact.failures) == (
        2,
        "https://h.example",
        True,
    )


def test_a_new_address_keeps_the_key_and_the_values_of_before_until_its_fact_is_there() -> None:
    older = Sealed("https://older.example", OLD, "a0")
    old = Sealed("https://old.example", OLD, "a1", older)
    made = change({"webhook": URL}, cluster(address_id="a1"), stored=old)
    assert made.sealed == Sealed(URL, OLD, ID, Sealed("https://old.example", OLD, "a1"))
    assert agreed(made.sealed, ID) is made.sealed
    assert agreed(made.sealed, "a1") == Sealed("https://old.example", OLD, "a1")
    assert change({"own": True}, cluster(address_id="a1"), stored=old).fact.address_id == "a1"


def test_values_of_another_request_are_not_used() -> None:
    theirs = Sealed("https://theirs.example", "whsec_theirs", "b1")
    assert agreed(theirs, "a1") is None and agreed(theirs, "") is None
    made = change({"webhook": URL}, cluster(address_id="a1"), stored=theirs)
    assert made.sealed == Sealed(URL, FRESH, ID)
    assert agreed(Sealed(URL), "") == Sealed(URL)


def test_no_secret_of_a_user_has_the_name_of_a_destination_in_the_vault() -> None:
    assert body.vault_name("d") == "=notify.d"


def test_an_own_key_is_kept_in_one_form() -> None:
    plain = base64.b64encode(b"o" * 24).decode()
    made = change({"webhook": URL, "key": plain})
    assert made.sealed == Sealed(URL, KEY_PREFIX + plain, ID)


@pytest.mark.parametrize(
    "given",
    [
        [],
        {"webhook": 5},
        {"unknown": 1},
        {},
        {"webhook": URL, "slack": URL},
        {"slack": URL, "key": "c2VjcmV0"},
        {"webhook": URL, "key": "SECRETPATH"},
        {"webhook": URL, "key": "c2VjcmV0"},
        {"webhook": URL, "kinds": ["nothing.like"]},
        {"webhook": URL, "kinds": ["key."]},
        {"webhook": URL, "kinds": ["*"]},
        {"webhook": URL, "models": [""]},
        {"webhook": URL, "models": ["m"] * 51},
        {"webhook": "ftp://h/SECRETPATH"},
        {"mail": "nobody"},
    ],
)
def test_a_wrong_request_is_refused_without_quoting_secrets(given: object) -> None:
    with pytest.raises(Refused) as refused:
        change(given)
    assert "SECRETPATH" not in str(refused.value) and "c2VjcmV0" not in str(refused.value)


def test_only_operators_choose_tenants_and_nodes() -> None:
    for field in ("tenants", "nodes"):
        with pytest.raises(Denied):
            change({"webhook": URL, field: ["x"]})
    made = change({"webhook": URL, "tenants": ["*"], "nodes": ["n1"]}, by=ROOT)
    assert (made.fact.tenants, made.fact.nodes) == (("*",), ("n1",))


def test_a_member_changes_only_its_own_destinations() -> None:
    with pytest.raises(Denied):
        change({"failures": True}, cluster(), BOB)
    with pytest.raises(Denied):
        body.removal(cluster(), BOB, "red", "d")
    assert body.removal(cluster(), ROOT, "red", "d") == NotificationRemoved(
        tenant=TenantId("red"), name="d", user="root"
    )
    assert change({"failures": True}, cluster(), ROOT).fact.user == "ada"
    with pytest.raises(Problem, match="no notification"):
        body.removal(Cluster(), ADA, "red", "d")


def test_an_operators_change_keeps_what_the_owner_may_read() -> None:
    with pytest.raises(Denied, match="belongs to ada"):
        change({"tenants": ["*"]}, cluster(), ROOT)


def test_names_and_numbers_are_bounded() -> None:
    for name in ("", "A", "a.b", "x" * 64):
        with pytest.raises(Refused):
            change({"webhook": URL}, name=name)
    full = {f"red.n{slot}": destination(slot=slot) for slot in range(OF_TENANT_MAX)}
    with pytest.raises(Problem, match=f"tenant red has {OF_TENANT_MAX} .*: remove one$"):
        change({"webhook": URL}, Cluster(notifications=full))
    full = {f"blue.n{slot}": destination(slot=slot) for slot in range(DESTINATIONS_MAX)}
    with pytest.raises(Problem, match=f"the cluster has {DESTINATIONS_MAX} .*: ask an operator"):
        change({"webhook": URL}, Cluster(notifications=full))
