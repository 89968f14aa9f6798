"""The resources of one gateway that all tenants share, with the part that each tenant holds.

`bytes` counts what requests keep in memory: bodies, whole answers of models, answers of batches,
and events that are not whole yet. `receiving` counts the uploads that a gateway receives now.
`uploads` are the archives that requests store, find and remove.
"""

from typing import Final

from libs.common.open_share import OpenShare
from libs.common.settings.settings import Settings
from services.api_gateway.access.upload_turns import UploadTurns

# Uploads that are received at one time, each in an unnamed file.
RECEIVING_MAX: Final = 16


class Shares:
    """The shares of one gateway."""

    def __init__(self, settings: Settings) -> None:
        self.bytes = OpenShare(settings.model_bodies_bytes)
        self.receiving = OpenShare(RECEIVING_MAX)
        self.uploads = UploadTurns()
