"""The use of models and GPUs as the API shows it.

Pure. A tenant sees what it paid for and what its own users used. Of other tenants' users of its
models it sees the tenant alone.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from libs.common.messages.usage_messages import Name, UsageAnswer, UsageLine, merged

# What lines may be told apart by, besides the payer and the kind.
PARTS: Final = ("tenant", "user", "key", "model")
SHARE_MS_PER_SECOND: Final = 100_000


class UsageShown(msgspec.Struct):
    """A line of the bill of `payer`.

    `kind` is job, requests (to a model), or idle (a model's replicas without a request).
    `gpu_seconds` is `share_ms`, which is exact, in whole GPUs and seconds.
    """

    payer: str
    tenant: str
    user: str
    key: str
    model: str
    kind: str
    requests: int
    input_tokens: int
    output_tokens: int
    share_ms: int
    gpu_seconds: float


class UsageList(msgspec.Struct):
    """The lines of a time. Those of a payer add up to its part of `charged_share_ms`."""

    usage: list[UsageShown]
    charged_share_ms: dict[str, int]
    seq: int


def usage_shown(found: UsageAnswer, by: Sequence[str], tenant: str | None) -> UsageList:
    """Show the lines by these parts, as `tenant` may see them; None sees all."""
    seen = found.lines if tenant is None else _seen(found.lines, tenant)
    lines = merged(seen, lambda line: _name(line, by))
    charged = {payer: share for payer, share in found.charged.items() if tenant in (None, payer)}
    shown = sorted(map(_shown, lines), key=lambda line: (line.payer, -line.share_ms, _text(line)))
    return UsageList(shown, charged, found.seq)


def as_csv(found: UsageList) -> str:
    """Return the lines as CSV with a header."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(UsageShown.__struct_fields__)
    writer.writerows(msgspec.structs.astuple(line) for line in found.usage)
    return out.getvalue()


def _seen(lines: Iterable[UsageLine], tenant: str) -> list[UsageLine]:
    found = [line for line in lines if tenant in (line.payer, line.tenant)]
    return [
        line if line.tenant == tenant else msgspec.structs.replace(line, user="", key="")
        for line in found
    ]


def _name(line: UsageLine, by: Sequence[str]) -> Name:
    return (
        line.payer,
        line.tenant if "tenant" in by else "",
        line.user if "user" in by else "",
        line.key if "key" in by else "",
        line.model if "model" in by else "",
        line.kind,
    )


def _shown(line: UsageLine) -> UsageShown:
    values = msgspec.structs.asdict(line)
    return UsageShown(**values, gpu_seconds=line.share_ms / SHARE_MS_PER_SECOND)


def _text(line: UsageShown) -> tuple[str, ...]:
    return line.tenant, line.user, line.key, line.model, line.kind
