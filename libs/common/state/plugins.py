"""The plug-ins in force: those of this term's scheduler, except for disabled ones.

Pure, part of the state, so that every reader agrees. A scheduler lists its plug-ins in TermBegan
and decides with no others. Plug-ins are explained in docs/howto/add-a-policy.md.
"""

from typing import Final, NamedTuple

import msgspec

ORDER: Final = "order"
SCORE: Final = "score"
# Number of disabled versions that are kept, the latest.
DISABLED_MAX: Final = 256


class PluginFault(NamedTuple):
    """The failure of a plug-in. `extends`: order or score."""

    extends: str
    name: str
    version: str
    reason: str


class Plugins(msgspec.Struct, frozen=True):
    """The plug-ins of the current term's scheduler, with their versions.

    `disabled` maps `<order or score> <name> <version>` to the reason.
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
