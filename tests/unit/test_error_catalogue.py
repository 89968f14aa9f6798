"""Meaning of each device error: every row, its gates, and the precedence of the sources."""

from itertools import chain

import pytest

from libs.common.devices.error_catalogue import (
    APPLICATION,
    CATALOGUES,
    DEVICE,
    FABRIC,
    INSTANCE,
    NEW_WORK,
    PLATFORM_DESIGN,
    VERDICTS,
    Catalogue,
    Judgement,
    Row,
    Seen,
    judge,
    row_of,
    version,
    worse,
)
from libs.common.devices.error_rows import catalogue, site_rows
from libs.common.errors import Refused

NVIDIA = {
    "ignore": (38, 44, 45, 63, 92, 108, 121, 137, 157, 160, 161, *range(162, 173)),
    "restart_job": (8, 13, 31, 32, 43, 68, 69, 94),
    "drain_then_reset": (48,),
    "reset": (46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158),
    "reboot_node": (79, 151),
    "replace": (54,),
}
OF_THE_JOB = (8, 13, 31, 32, 43, 68, 69)
CONTAINED = (*OF_THE_JOB, 94)
# On which card a row is that is of some cards only.
CARD = {**dict.fromkeys(range(144, 151), "NVIDIA B200"), 121: "NVIDIA GB200"}
# Known, and left open: their register words, or Xid 154's own text, decide.
OPEN = (61, 74, *range(144, 151), 154)
KNOWN = [(number, word) for word, numbers in NVIDIA.items() for number in numbers]


def xid(
    number: int,
    text: str = "",
    recovery: int | None = None,
    model: str = "",
    driver: str = "610.12",
) -> Seen:
    return Seen(
        vendor="nvidia",
        model=model or CARD.get(number, "NVIDIA H100 80GB HBM3"),
        driver=driver,
        error=f"xid {number}",
        text=text,
        recovery=recovery,
    )


def changed(to: str, words: str) -> str:
    return f"GPU recovery action changed from 0x0 (None) to 0x{to} ({words})"


@pytest.mark.parametrize(("number", "word"), KNOWN)
def test_every_row_has_the_verdict_of_the_guidance(number: int, word: str) -> None:
    assert judge(xid(number), catalogue(), {"xid 31": "replace", "xid 48": "ignore"}) == Judgement(
        word,
        APPLICATION if number in OF_THE_JOB else "hardware",
        "catalogue",
        INSTANCE if number in CONTAINED else DEVICE,
    )


def test_an_error_of_a_switch_is_judged_by_its_number_before_its_kind() -> None:
    fatal = Seen("nvidia", "NVIDIA H100", "610", "sxid 24007", kind="sxid fatal")
    mild = Seen("nvidia", "NVIDIA H100", "610", "sxid 12028", kind="sxid non-fatal")
    assert judge(fatal, catalogue(), {}) == Judgement(
        "reboot_node", "hardware", "catalogue", FABRIC
    )
    assert judge(mild, catalogue(), {}) == Judgement("ignore", "hardware", "catalogue", FABRIC)
    known = catalogue().rows
    own = Row("nvidia", ("sxid 24007",), "this one", "ignore", reach="fabric")
    assert judge(fatal, Catalogue("", (own, *known)), {}).verdict == "ignore"
    left_open = Catalogue("", (Row("nvidia", ("sxid fatal",), "any", "", reach="fabric"),))
    assert judge(fatal, left_open, {"sxid fatal": "reset", "sxid 24007": "replace"}) == Judgement(
        "replace", "hardware", "site", FABRIC
    )
    assert judge(fatal, left_open, {"sxid fatal": "reset"}).verdict == "reset"


def test_a_contained_error_reaches_the_whole_device_when_the_driver_asks_for_a_reset_at_once() -> (
    None
):
    reaches = {action: judge(xid(94, recovery=action), catalogue(), {}) for action in (0, 1, 4)}
    assert [(found.verdict, found.reach) for found in reaches.values()] == [
        ("restart_job", INSTANCE),
        ("reset", DEVICE),
        ("drain_then_reset", INSTANCE),
    ]
    assert judge(xid(999, recovery=4), catalogue(), {}).reach == DEVICE


@pytest.mark.parametrize("number", OPEN)
def test_errors_outside_the_catalogue_follow_the_site_or_drain_the_device(number: int) -> None:
    assert judge(xid(number), catalogue(), {f"xid {number}": "replace"}) == Judgement(
        "replace", "hardware", "site"
    )
    assert judge(xid(number), catalogue(), {}) == Judgement(
        "drain_then_reset", "hardware", "default"
    )


def test_an_error_that_nobody_knows_drains_and_is_reset() -> None:
    assert judge(xid(999), catalogue(), {}) == Judgement("drain_then_reset", "hardware", "default")


def test_every_row_is_tested_here_and_its_words_are_known() -> None:
    errors = [
        error
        for row in catalogue().rows
        if row.vendor == "nvidia"
        for error in row.errors
        if error.startswith("xid ")
    ]
    tested = [f"xid {number}" for number in chain(OPEN, (number for number, _ in KNOWN))]
    assert sorted(dict.fromkeys(errors)) == sorted(tested)
    assert [
        row
        for name in CATALOGUES
        for row in catalogue(name).rows
        if row.verdict not in ("", *VERDICTS)
    ] == []


@pytest.mark.parametrize(
    ("vendor", "error", "word", "cause"),
    [
        ("amd", "uncorrectable", "reset", "hardware"),
        ("amd", "page_fault", "restart_job", "application"),
        ("amd", "driver_reset", "restart_job", "hardware"),
        ("intel", "hang", "restart_job", "application"),
        ("intel", "blocked", "reboot_node", "hardware"),
        ("intel", "lost", "reboot_node", "hardware"),
        ("amd", "corrected", "ignore", "hardware"),
        ("nvidia", "pcie_replays", "ignore", "hardware"),
        ("amd", "xid 31", "drain_then_reset", "hardware"),
    ],
)
def test_vendors_without_xids_have_rows_of_their_own(
    vendor: str, error: str, word: str, cause: str
) -> None:
    judged = judge(Seen(vendor, "MI300X", "", error), catalogue(), {})
    assert (judged.verdict, judged.cause) == (word, cause)


def test_a_row_is_of_its_products_and_drivers_only() -> None:
    assert judge(xid(136, model="NVIDIA A100-SXM4-80GB"), catalogue(), {}).by == "default"
    assert judge(xid(160, driver="580.65.06"), catalogue(), {}).verdict == "reboot_node"
    assert judge(xid(160, driver=""), catalogue(), {}).verdict == "reboot_node"
    assert judge(xid(160, driver="610"), catalogue(), {}).verdict == "ignore"
    assert version("580.65.x") == (580, 65, 0)


@pytest.mark.parametrize(
    ("action", "word"),
    [
        *dict.fromkeys((3, 4, 5), "drain_then_reset").items(),
        (1, "reset"),
        (6, "reset"),
        (2, "reboot_node"),
        (7, "reboot_node"),
    ],
)
def test_the_recovery_field_goes_before_everything(action: int, word: str) -> None:
    told = xid(154, changed("2", "Node Reboot Required"), recovery=action)
    assert judge(told, catalogue(), {"xid 154": "replace"}) == Judgement(
        word, "hardware", "recovery field"
    )
    assert judge(xid(31, recovery=action), catalogue(), {}).verdict == word


def test_a_recovery_field_of_none_spares_the_device_and_not_the_job() -> None:
    found = [
        judge(xid(number, recovery=0), catalogue(), {}).verdict for number in (31, 95, 48, 63, 999)
    ]
    assert found == ["restart_job", "restart_job", "ignore", "ignore", "ignore"]


def test_xid_154_goes_before_the_catalogue_and_the_site() -> None:
    assert judge(
        xid(154, changed("4", "Drain and Reset")), catalogue(), {"xid 154": "replace"}
    ) == Judgement("drain_then_reset", "hardware", "xid 154")
    assert judge(xid(154, changed("0", "None")), catalogue(), {}).verdict == "ignore"


@pytest.mark.parametrize("text", ["", "changed from 0x0 (None) to 0x9 (Something New)"])
def test_an_xid_154_that_says_nothing_known_is_as_any_other(text: str) -> None:
    assert judge(xid(154, text), catalogue(), {}).by == "default"


def test_a_recovery_action_of_a_later_driver_is_not_believed() -> None:
    assert judge(xid(95, recovery=77), catalogue(), {}) == Judgement(
        "reset", "hardware", "catalogue"
    )


def test_the_platform_design_s_table_can_be_chosen_and_differs_where_it_says_so() -> None:
    ours, theirs = catalogue(), catalogue(PLATFORM_DESIGN)
    differ = [
        number
        for number, _ in KNOWN
        if judge(xid(number), ours, {}).verdict != judge(xid(number), theirs, {}).verdict
    ]
    assert sorted(differ) == [31, 43, 48]
    assert [judge(xid(number), theirs, {}).verdict for number in (31, 43, 48)] == ["reset"] * 3
    assert judge(xid(31, recovery=0), theirs, {}).verdict == "restart_job"


def test_of_two_verdicts_the_harder_one_counts() -> None:
    assert (
        worse("reset", "reboot_node"),
        worse("reset", "drain_then_reset"),
        worse("ignore", "ignore"),
    ) == (
        "reboot_node",
        "reset",
        "ignore",
    )


def test_a_catalogue_and_a_site_s_rows_are_checked_when_they_are_read() -> None:
    assert site_rows(" xid 74=reset, xid 144 = replace,") == {
        "xid 74": "reset",
        "xid 144": "replace",
    }
    assert site_rows("") == {}
    with pytest.raises(Refused, match="must be ERROR=VERDICT"):
        site_rows("xid 74=explode")
    with pytest.raises(Refused, match="use nvidia-guidance or platform-design"):
        catalogue("mine")


def test_bad_readings_block_new_work_and_end_no_job() -> None:
    sram, risen = (
        Seen("nvidia", "NVIDIA H100", "610", error) for error in ("sram_threshold", "uncorrected")
    )
    assert judge(sram, catalogue(), {}) == Judgement("replace", "hardware", "catalogue", NEW_WORK)
    assert judge(risen, catalogue(), {}) == Judgement(
        "drain_then_reset", "hardware", "catalogue", NEW_WORK
    )
    row = row_of(risen, catalogue().rows)
    assert row is not None and (row.most, row.window_s) == (0, 3_600)
