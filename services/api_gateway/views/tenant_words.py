"""Words for the facts about secrets and notifications of tenants, in a line. Pure."""

from collections.abc import Callable
from typing import Any, Final

from libs.common import facts as f
from services.api_gateway.views.user_words import user_named

TENANT_WORDS: Final[dict[type, Callable[[Any], str]]] = {
    f.SecretSet: lambda x: (
        f"secret {x.name} of {x.tenant}, version {x.version}, set by {user_named(x.user)}"
    ),
    f.SecretRemoved: lambda x: f"secret {x.name} of {x.tenant} removed by {user_named(x.user)}",
    f.NotificationSet: lambda x: (
        f"notifications {x.name} of {x.tenant} go to {x.form} {x.shown}, "
        f"set by {user_named(x.user)}"
    ),
    f.NotificationRemoved: lambda x: (
        f"notifications {x.name} of {x.tenant} removed by {user_named(x.user)}"
    ),
}
