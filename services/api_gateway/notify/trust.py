"""The authorities that certificates of destinations and of the mail relay are checked with."""

import ssl
from pathlib import Path

from libs.common.errors import Unavailable
from libs.common.settings.settings import Settings


def tls_context(settings: Settings) -> ssl.SSLContext:
    """Return a context with the system's authorities and those of the settings.

    Raises Unavailable if the file of the settings cannot be used.
    """
    context = ssl.create_default_context()
    if settings.notify_ca_file:
        try:
            text = Path(settings.notify_ca_file).read_text(encoding="ascii")
            context.load_verify_locations(cadata=text)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise Unavailable(
                "the gateway cannot use the file of MUSTER_NOTIFY_CA_FILE "
                f"({type(error).__name__}): ask an operator to make it a readable PEM file"
            ) from error
    return context
