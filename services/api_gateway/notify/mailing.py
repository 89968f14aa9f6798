"""Hands one mail to the relay of the settings. Blocking: call it in a thread."""

import smtplib
import ssl
from email.message import EmailMessage
from pathlib import Path
from typing import Final

from libs.common.errors import Unavailable
from libs.common.settings.settings import Settings

# Longest wait for one step of the relay.
STEP_S: Final = 8.0
TLS: Final = "tls"
STARTTLS: Final = "starttls"


def send_mail(settings: Settings, message: EmailMessage) -> None:
    """Send a mail over TLS, unless the settings say `off`. Raises Unavailable."""
    try:
        with _connected(settings) as relay:
            if settings.smtp_tls == STARTTLS:
                relay.starttls(context=_context(settings))
            if settings.smtp_user:
                password = Path(settings.smtp_password_file).read_text().strip()
                relay.login(settings.smtp_user, password)
            relay.send_message(message)
    except smtplib.SMTPResponseException as error:
        raise Unavailable(f"the mail relay refused the mail ({error.smtp_code})") from None
    except smtplib.SMTPRecipientsRefused:
        raise Unavailable("the mail relay refused the receiver") from None
    except ssl.SSLError:
        raise Unavailable("TLS with the mail relay failed: check its certificate") from None
    except (smtplib.SMTPException, OSError, ValueError) as error:
        raise Unavailable(f"the mail relay did not answer ({type(error).__name__})") from None


def _connected(settings: Settings) -> smtplib.SMTP:
    if settings.smtp_tls == TLS:
        return smtplib.SMTP_SSL(
            settings.smtp_host, settings.smtp_port, timeout=STEP_S, context=_context(settings)
        )
    return smtplib.SMTP(settings.smtp_host, settings.smtp_port, timeout=STEP_S)


def _context(settings: Settings) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if settings.notify_ca_file:
        context.load_verify_locations(cadata=Path(settings.notify_ca_file).read_text())
    return context
