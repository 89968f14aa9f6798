"""What one gateway has for the requests of all tenants, and what each tenant holds of it.

`bytes` counts what requests keep in memory: bodies, and whole answers of models, also of batches.
"""

from libs.common.settings.settings import Settings
from services.api_gateway.access.open_share import OpenShare


class Shares:
    """The shares of one gateway."""

    def __init__(self, settings: Settings) -> None:
        self.bytes = OpenShare(settings.model_bodies_bytes)
