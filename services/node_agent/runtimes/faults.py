"""The errors that end a job with an image, because another attempt would meet them too. Pure."""

from typing import Final

from libs.common import reasons
from libs.common.errors import Refused

# The exit code of Docker's own command.
EXIT_CODE: Final = 125


class NoContainer(Refused):
    """The node does not allow what the job asks of its container. The job ends."""

    reason: str = reasons.NO_CONTAINER


class NoImage(NoContainer):
    """The image cannot be pulled. The job ends, because another node would fail too."""

    reason: str = reasons.NO_IMAGE
