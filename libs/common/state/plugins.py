"""Which plug-ins count: those that the scheduler of this term says it has, less those that went
bad.

Pure, part of the fold. So who decides by a plug-in is a matter of facts, the same for every reader;
a scheduler that lacks one says so by its TermBegan, and does not decide by it. What a plug-in is:
docs/howto/add-a-policy.md.
"""

from typing import Final, NamedTuple

import msgspec

ORDER: Final = "order"
SCORE: Final = "score"
# Of versions that went bad, the latest.
DISABLED_MAX: Final = 256


class PluginFault(NamedTuple):
    """A plug-in has gone bad. `extends`: order or score."""

    extends: str
    name: str
    version: str
    reason: str


class Plugins(msgspec.Struct, frozen=True):
    """Versions by name, as the present term's scheduler has them; why some count no more, by
    `<order or score> <name> <version>`.
    """

    orders: dict[str, str] = {}
    scores: dict[str, str] = {}
    disabled: dict[str, str] = {}

    def version_of(self, kind: str, name: str) -> str | None:
        return (self.orders if kind == ORDER else self.scores).get(name)

    def in_force(self, kind: str, name: str) -> bool:
        version = self.version_of(kind, name)
        return version is not None and ref(kind, name, version) not in self.disabled


def ref(kind: str, name: str, version: str) -> str:
    return f"{kind} {name} {version}"
