"""docs/settings.md: every environment variable, from libs/common/settings.py."""

import msgspec

from libs.common.settings import HELP, PREFIX, Settings
from libs.docs.markdown import code, page, prose, table


def settings() -> str:
    from libs.common import settings as module

    rows = [(code(PREFIX + field.name.upper()), _default(field.default), HELP[field.name]) for field in msgspec.structs.fields(Settings)]
    return page("Settings", prose(module.__doc__), table(("variable", "default", "meaning"), rows))


def _default(value: object) -> str:
    return code(str(value)) or "(empty)"
