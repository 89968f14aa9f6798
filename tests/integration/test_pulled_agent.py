"""The agent's part of pulled models: folders, groups, uses, mounts of containers, and answers."""

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from libs.common.errors import Refused
from libs.common.messages import StartOrder
from libs.common.messages.pulled_messages import PulledAsk, PulledReport
from libs.common.model import AttemptRef, JobSpec
from libs.common.placeholders import PULL
from libs.common.safety.folder_walk import remove_tree
from libs.common.transport.bus import MESSAGE_BYTES_MAX
from libs.job.pulling.copies import Copies, Copy
from libs.job.pulling.listing import Listed
from services.node_agent.directories.accounts import Account
from services.node_agent.directories.protocol import Launch, Machine
from services.node_agent.directories.tenant_numbers import TenantNumbers
from services.node_agent.pulled.pulled import ASKS_MAX, NS_MAX, Pulled
from tests.integration.peer_uploads_world import start_order

A, B = "a" * 40, "b" * 40
NAME = "Team/Tiny"
NUMBER = 70_123
# Deeper than Python's recursion and the kernel's longest path.
DEEP = 2_500


@pytest.fixture
def pulled(tmp_path: Path) -> Iterator[Pulled]:
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o011)
    numbers = TenantNumbers(span=f"{NUMBER}-{NUMBER}", table=str(tmp_path / "table.json"))
    made = Pulled(
        Machine(node_id="n1", address="", numbers=numbers),
        state_dir=tmp_path,
        folder=tmp_path / "pulled",
        bound_bytes=1_000,
        hub="http://hub",
    )
    yield made
    made.close()


def order(*command: str, env: Mapping[str, str] | None = None, image: str = "") -> StartOrder:
    spec = JobSpec(command=command, env=dict(env or {}), image=image)
    return replace(start_order("j"), spec=spec)


def launch_of(order: StartOrder, account: Account | None = None) -> Launch:
    return Launch(
        ref=AttemptRef(order.job_id, order.attempt),
        rank=0,
        argv=order.spec.command,
        env={**order.spec.env, "PATH": os.environ["PATH"], "HF_TOKEN": f"{{pulled:{NAME}}}"},
        workdir="/",
        stdin=False,
        output_limit_bytes=1,
        ignore_lease=False,
        account=account,
        gpus=(),
        seq=1,
    )


async def hold(pulled: Pulled, wish: StartOrder, account: Account | None = None) -> Launch:
    return await pulled.hold(launch_of(wish, account), wish)


def published(pulled: Pulled, commit: str = A) -> Copies:
    copies = pulled._copies("red")
    copies.place(NAME, commit).mkdir(parents=True)
    copies.publish(Copy(NAME, commit, revisions=("main",)), [Listed("w", 0, "git", "d" * 40)])
    return copies


def account(uid: int = 12_345) -> Account:
    return Account(name="ann", uid=uid, gid=uid, groups=(44,), home="/", shell="/bin/sh")


async def test_a_job_that_names_no_model_is_left_alone(pulled: Pulled) -> None:
    wish = order("echo", "{pulled}", "{port}")
    assert await hold(pulled, wish) == launch_of(wish)
    assert not pulled.folder.exists()


async def test_a_pull_gets_the_tenant_s_folder_its_bound_and_the_hub(pulled: Pulled) -> None:
    made = await hold(pulled, order(PULL, NAME, "--revision", "main"))
    folder = str(pulled.folder / "copies/red")
    assert made.argv[1] == "-I" and made.argv[3:] == (NAME, "--revision", "main")
    assert made.workdir == folder == made.env["MUSTER_PULL_FOLDER"]
    assert (made.env["MUSTER_PULL_BYTES"], made.env["MUSTER_HUB"]) == ("1000", "http://hub")
    with pytest.raises(Refused, match="without an image"):
        await hold(pulled, order(PULL, NAME, image="x"))


async def test_a_folder_stands_in_words_and_own_variables_but_in_no_secret(
    pulled: Pulled,
) -> None:
    with pytest.raises(Refused, match=r"node n1 has no copy of Team/Tiny \(revision main\)"):
        await hold(pulled, order("serve", f"{{pulled:{NAME}}}"))
    copies = published(pulled)
    place = str(copies.place(NAME, A))
    env = {"DRAFT": f"{{pulled:{NAME}@{A}}}"}
    made = await hold(pulled, order("serve", f"--model={{pulled:{NAME}}}", env=env))
    assert made.argv == ("serve", f"--model={place}")
    assert made.env["DRAFT"] == place and made.env["HF_TOKEN"] == f"{{pulled:{NAME}}}"
    assert [(mount["target"], mount["read_only"]) for mount in made.mounts] == 2 * [(place, True)]
    assert made.mounts[0]["names"] == ["Team--Tiny", A]


async def test_a_use_ends_with_its_attempt_or_with_the_next_agent(pulled: Pulled) -> None:
    await hold(pulled, order(PULL, NAME))
    copies = published(pulled)
    os.utime(copies.place(NAME, A, ".json"), (1, 1))
    await hold(pulled, order("serve", f"{{pulled:{NAME}}}"))
    assert copies.used() == {f"Team--Tiny/{A}"}
    pulled.adopt({"j.1", "other.1"})
    report = pulled.report(PulledAsk("red", NAME))
    assert report.stays.endswith("a job or a model uses it") and report.copies[0].in_use
    await pulled.let_go("j.1")
    await pulled.let_go("j.1")
    (copy,) = pulled.report(PulledAsk("red")).copies
    assert not copy.in_use and copy.used_ns > 1_000_000_000
    await hold(pulled, order("serve", f"{{pulled:{NAME}}}"))
    pulled.adopt({"other.1"})
    assert copies.used() == set()
    report = pulled.report(PulledAsk("red", NAME, A))
    assert [copy.commit for copy in report.removed] == [A] and report.copies == ()


async def test_a_request_of_one_tenant_never_reaches_the_copies_of_another(
    pulled: Pulled,
) -> None:
    await hold(pulled, order(PULL, NAME))
    published(pulled)
    for tenant in ("blue", "", "..", "red/../red", "../copies/red"):
        assert pulled.report(PulledAsk(tenant, NAME)).copies == ()
    assert pulled.report(PulledAsk("red")).copies


async def test_hostile_files_of_a_tenant_neither_stop_nor_lead_the_agent(
    pulled: Pulled, tmp_path: Path
) -> None:
    await hold(pulled, order(PULL, NAME))
    copies = published(pulled)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    (copies.place(NAME, B)).symlink_to(outside)
    os.mkfifo(copies.place(NAME, "c" * 40, ".json"))
    deep = copies.place(NAME, "d" * 40)
    deep.mkdir()
    here = os.open(deep, os.O_DIRECTORY)
    for _ in range(DEEP):
        os.mkdir("x", dir_fd=here)
        inner = os.open("x", os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    try:
        assert len(pulled.report(PulledAsk("red")).copies) == 4
        report = pulled.report(PulledAsk("red", NAME))
        assert report.copies == () and report.error == "" and (outside / "kept").exists()
    finally:
        remove_tree(deep)  # pytest cannot remove it


def described(**changes: Any) -> str:
    whole = {"revisions": ["main"], "size_bytes": 1, "files": 1, "include": [], "job_id": "j"}
    return json.dumps({**whole, **changes})


@pytest.mark.parametrize(
    "text",
    [
        described(size_bytes=float("inf")),
        described(size_bytes=1 << 70),
        described(files=-1),
        described(revisions=["main", "\ud800"]),
        described(job_id="\x1b[2J"),
        described(include="*"),
    ],
)
async def test_a_description_with_impossible_values_refuses_the_job_and_is_still_answered(
    pulled: Pulled, text: str
) -> None:
    await hold(pulled, order(PULL, NAME))
    copies = published(pulled)
    copies.place(NAME, A, ".json").write_text(text)
    for number in range(3):
        copies.place(NAME, A, f"/{number}").touch()
        os.truncate(copies.place(NAME, A, f"/{number}"), 1 << 42)
    os.utime(copies.place(NAME, A), (3 << 32, 3 << 32))
    for reference in (NAME, f"{NAME}@{A}"):
        with pytest.raises(Refused, match="has no copy of"):
            await hold(pulled, order("serve", f"{{pulled:{reference}}}"))
    report = await asked(pulled, PulledAsk("red"))
    assert [(copy.complete, copy.used_ns) for copy in report.copies] == [(False, NS_MAX)]


async def test_folders_in_the_place_of_files_cost_the_agent_no_descriptors(
    pulled: Pulled,
) -> None:
    await hold(pulled, order(PULL, NAME))
    copies = published(pulled)
    copies.place(NAME, B, ".json").mkdir()
    pulled.report(PulledAsk("red"))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(8):
        pulled.report(PulledAsk("red"))
    assert len(os.listdir("/proc/self/fd")) == before


async def test_an_answer_fits_a_message_and_counts_what_it_leaves_out(pulled: Pulled) -> None:
    await hold(pulled, order(PULL, NAME))
    copies = published(pulled)
    whole = described(revisions=[f"{number:04}" + "x" * 124 for number in range(400)])
    for number in range(40):
        copies.place(NAME, f"{number:040x}").mkdir()
        copies.place(NAME, f"{number:040x}", ".json").write_text(whole)
    report = await asked(pulled, PulledAsk("red"))
    assert report.copies and len(report.copies) + report.left_out == 41
    report = await asked(pulled, PulledAsk("red", NAME))
    assert report.removed and report.copies == ()


async def test_a_tenant_that_asks_much_is_refused_and_others_are_answered(pulled: Pulled) -> None:
    await hold(pulled, order(PULL, NAME))
    published(pulled)
    many = [asked(pulled, PulledAsk("red")) for _ in range(4 * ASKS_MAX)]
    *answers, other = await asyncio.gather(*many, asked(pulled, PulledAsk("blue")))
    refused = [each for each in answers if each.error]
    assert len(refused) == 3 * ASKS_MAX and "try again later" in refused[0].error
    assert not other.error and not (await asked(pulled, PulledAsk("red"))).error


async def asked(pulled: Pulled, ask: PulledAsk) -> PulledReport:
    """Return the answer as a gateway gets it."""
    data = await pulled._on_ask("ask.n1.pulled", msgspec.msgpack.encode(ask))
    assert len(data) <= MESSAGE_BYTES_MAX
    return msgspec.msgpack.decode(data, type=PulledReport)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
async def test_every_user_of_a_tenant_gets_the_group_of_its_folder(pulled: Pulled) -> None:
    made = await hold(pulled, order(PULL, NAME), account())
    assert made.account is not None and made.account.ids == [12_345, 12_345, 44, NUMBER]
    again = await hold(pulled, order(PULL, NAME), account(NUMBER))
    assert again.account is not None and again.account.groups == (44,)
    for kind, mode in (("copies", 0o2770), ("uses", 0o2750)):
        status = os.stat(pulled.folder / kind / "red")
        assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (0, NUMBER, mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
async def test_a_folder_that_users_cannot_reach_refuses_the_job(pulled: Pulled) -> None:
    pulled.folder = pulled.folder / "deep" / "pulled"
    pulled.folder.parent.mkdir(parents=True, mode=0o700)
    with pytest.raises(Refused, match="set MUSTER_PULLED_DIR on this node"):
        await hold(pulled, order(PULL, NAME), account())
