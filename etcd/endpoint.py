"""Whether a client may use an object store at an address. Standard library only: etcd's wrapper imports this."""

from ipaddress import ip_address
from urllib.parse import urlsplit

ALLOW_PLAIN = "allowPlainHTTP"
"""Key of a backup store's credentials: with ``true`` the operator permits an endpoint without TLS.

For landscapes, where the store is on the same machine.
"""


def fault_of(endpoint: str, allow_plain: str | None) -> str:
    """Reason why an endpoint must not be used; empty if it may be used.

    Without TLS any listener on the network path reads the backups. The loopback of this machine has no such listener.
    ``allow_plain``: value of ALLOW_PLAIN in the credentials.
    """
    url = urlsplit(endpoint)
    if url.scheme == "https" or _is_loopback(url.hostname or ""):
        return ""
    if url.scheme == "http" and (allow_plain or "").strip() == "true":
        return ""
    return (
        f"endpoint {url.scheme}://{url.hostname} of the backup store has no TLS, so backups would be sent in the"
        f" clear: give the store https, or permit this by {ALLOW_PLAIN}: 'true' in the credentials of the backup store"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
