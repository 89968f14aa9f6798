"""Bounds the bytes of forms that a gateway holds: in all, and those of one tenant.

A form is held from its beginning up to the field `model`, which a client may send last.
Tests: tests/integration/test_openai_forms.py.
"""

from typing import Final

from services.api_gateway.openai.errors import ApiError

# One tenant may hold at most this part of all.
TENANT_PART: Final = 2


class FormSpace:
    """The held bytes, all and by tenant, and their bound `bytes_max`."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held = 0
        self.of_tenant: dict[str, int] = {}

    def take(self, tenant: str, size: int) -> None:
        """Count bytes of the tenant's form.

        Raises ApiError: 429 if the tenant holds too much, 503 if all do.
        """
        own = self.of_tenant.get(tenant, 0) + size
        if own > self.bytes_max // TENANT_PART:
            raise _full(429, f"forms of tenant {tenant} hold")
        if self.held + size > self.bytes_max:
            raise _full(503, "forms of all tenants hold")
        self.of_tenant[tenant] = own
        self.held += size

    def give_back(self, tenant: str, size: int) -> None:
        """Count bytes no longer that were taken."""
        self.held -= size
        if left := self.of_tenant.pop(tenant, 0) - size:
            self.of_tenant[tenant] = left


def _full(status: int, what: str) -> ApiError:
    text = (
        f"{what} as much as this gateway keeps: try again in a moment, send the field model before "
        "the file, or raise MUSTER_MODEL_FORMS_BYTES"
    )
    return ApiError(status, text, "overloaded", retry_after_s=1)
