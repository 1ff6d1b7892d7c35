"""Where gateway and worker meet, read from the settings by both."""

from loraplex.engine.client import Address, Security, parse_address
from loraplex.platform.settings import Settings


def stream_address(settings: Settings) -> tuple[Address, Security]:
    """The worker's address and what guards it. Raises StreamAddressInvalid."""
    token = settings.worker_token
    security = Security(
        token="" if token is None else token.get_secret_value(),
        tls_cert=settings.worker_tls_cert,
        tls_key=settings.worker_tls_key,
    )
    return parse_address(settings.resolved_worker_address, security), security
