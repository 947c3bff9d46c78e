"""Opens buckets of S3 stores, and says why a request failed.

The keys of credentials are those of etcd-backup-restore. This module does without asyncio: etcd's wrapper imports it,
and a cluster's clients wait for the wrapper's start.
"""

import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from obstore.exceptions import BaseError
from obstore.store import S3Store

from etcd import endpoint

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config

ACCESS_KEY = "accessKeyID"
SECRET_KEY = "secretAccessKey"
REGION = "region"
ENDPOINT = "endpoint"
BUCKET = "bucketName"
PATH_STYLE = "s3ForcePathStyle"
"""``false``: the bucket is part of the host's name. By default it is the first part of the path."""
CA = "trustedCaCert"
"""Certificates, as PEM, that the client trusts beside those of the system."""

PROVIDERS = ("local", "aws", "S3")
"""Names of S3 stores: types of providers, and the name that etcd-backup-restore uses."""

NO_OBJECT = "NoObject"
"""Name of an object that no directory has."""

FAILURES = (BaseError, OSError)
"""Errors of obstore's requests. A missing object is a FileNotFoundError."""

_DEFAULT_REGION = "us-east-1"
_LONGEST = timedelta(days=1)
"""Limit of a whole request: a snapshot of 8 GiB takes long. Before that, ``patience`` ends a request that stands."""
_EVERY_HOST = "*,0.0.0.0/0,::/0"
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>|\(code: (\w+)\)")
_REFUSED = {"AccessDenied": 403, "InvalidAccessKeyId": 403, "SignatureDoesNotMatch": 403}


class StoreError(Exception):
    """The store refused a request or did not answer; the text never holds credentials or contents."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status; 0 if no answer came."""


def open_bucket(
    provider: str, credentials: Mapping[str, str], bucket: str, *, patience: timedelta, retries: int
) -> S3Store:
    """Client of a bucket, from the data of the Secret with its credentials.

    Args:
        patience: time for which the store may send nothing.
        retries: how often a request that has failed is sent again.

    Raises:
        StoreError: the provider is unknown, the credentials are not complete, or the endpoint has no TLS and the
            credentials do not permit that.
    """
    if provider not in PROVIDERS:
        raise StoreError(f"backup provider {provider!r} is unknown, must be one of {', '.join(PROVIDERS)}")
    values = {key: value.strip() for key, value in credentials.items()}
    if missing := [key for key in (ACCESS_KEY, SECRET_KEY) if not values.get(key)]:
        raise StoreError(f"credentials of the backup store lack {', '.join(missing)}")
    if not values.get(ENDPOINT) and not values.get(REGION):
        raise StoreError(f"credentials of the backup store lack {ENDPOINT} or {REGION}")
    if (url := values.get(ENDPOINT)) and (fault := endpoint.fault_of(url, values.get(endpoint.ALLOW_PLAIN))):
        raise StoreError(fault)
    config: S3Config = {
        "access_key_id": values[ACCESS_KEY],
        "secret_access_key": values[SECRET_KEY],
        "region": values.get(REGION) or _DEFAULT_REGION,
    }
    if values.get(PATH_STYLE) == "false":
        config["virtual_hosted_style_request"] = True
    if url:
        config["endpoint"] = _with_bucket(url, bucket) if values.get(PATH_STYLE) == "false" else url
    client: ClientConfig = {
        "connect_timeout": patience,
        "read_timeout": patience,
        "timeout": _LONGEST,
        # Without a proxy of its own, obstore would take the one of the environment. This one is used for no host.
        "proxy_url": "http://unused.invalid",
        "proxy_excludes": _EVERY_HOST,
    }
    if url and urlsplit(url).scheme == "http":
        client["allow_http"] = True
    if certificates := values.get(CA):
        client["root_certificate"] = certificates
    try:
        return S3Store(
            bucket,
            config=config,
            client_options=client,
            retry_config={"max_retries": retries, "retry_timeout": timedelta(seconds=60)},
        )
    except (*FAILURES, ValueError) as error:
        raise StoreError(f"credentials of the backup store can't be used: {type(error).__name__}") from None


def mounted(directory: Path) -> dict[str, str]:
    """Credentials from the directory of a mounted Secret, with one file for each key. Raises StoreError."""
    try:
        return {file.name: file.read_text() for file in directory.iterdir() if file.is_file()}
    except OSError as error:
        raise StoreError(f"credentials of the backup store can't be read: {error.strerror}") from None


def failure(doing: str, error: Exception) -> StoreError:
    """Meaning of a failed request: only the status and S3's code, because obstore's text names keys."""
    text = str(error)
    code = next((each for match in _CODE.finditer(text) for each in match.groups() if each), "")
    found = _STATUS.search(text)
    status = int(found[1]) if found else 404 if isinstance(error, FileNotFoundError) else _REFUSED.get(code, 0)
    if status or code:
        return StoreError(f"{doing}: store answered {status or ''} {code}".rstrip(), status)
    return StoreError(f"{doing}: no answer from the store: {type(error).__name__}")


def check_store(doing: str, error: Exception | None) -> None:
    """Raise StoreError if an empty list is not from a store: obstore takes any XML or HTML page for an empty list.

    Such a server has a page for each path, so it also has one for an object that no store holds.

    Args:
        error: answer of the server to a request for ``NO_OBJECT`` in the listed directory; None if it has this object.
    """
    if error is None:
        raise StoreError(f"{doing}: what answers is no store")
    fault = failure(doing, error)
    if fault.status not in (403, 404):  # AWS answers 403 if the user may list only a directory
        raise fault


def _with_bucket(url: str, bucket: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{bucket}.{rest}"
