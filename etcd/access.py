"""Access of other components to an etcd and its sidecar: TLS from the Secrets that the ``Etcd`` object names."""

import asyncio
import base64
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from api.resources import SECRET
from etcd.client import client_tls
from kube.client import KubeClient

_SHOW_SECONDS = 5.0


async def tls_of(client: KubeClient, etcd: Mapping[str, Any]) -> ssl.SSLContext:
    """Client TLS for the members of an etcd.

    Raises NotFound, KeyError, ValueError or ssl.SSLError if a Secret is missing or invalid.
    """
    namespace, tls = etcd["metadata"]["namespace"], etcd["spec"]["etcd"]["clientUrlTls"]
    ca, own = await asyncio.gather(
        client.get(SECRET, tls["tlsCASecretRef"]["name"], namespace),
        client.get(SECRET, tls["clientTLSSecretRef"]["name"], namespace),
    )
    bundle = base64.b64decode(ca["data"][tls["tlsCASecretRef"].get("dataKey", "bundle.crt")])
    with tempfile.TemporaryDirectory() as directory:  # mode 0700; Python's ssl takes files only
        files = [Path(directory, name) for name in ("tls.crt", "tls.key")]
        for file in files:
            file.write_bytes(base64.b64decode(own["data"][file.name]))
        return client_tls(bundle, str(files[0]), str(files[1]))


async def server_certificate_of(client: KubeClient, etcd: Mapping[str, Any]) -> bytes:
    """The certificate (DER) that members of an etcd must present. Raises NotFound, KeyError."""
    name = etcd["spec"]["etcd"]["clientUrlTls"]["serverTLSSecretRef"]["name"]
    secret = await client.get(SECRET, name, etcd["metadata"]["namespace"])
    return ssl.PEM_cert_to_DER_cert(base64.b64decode(secret["data"]["tls.crt"]).decode())


async def shown_certificate(host: str, port: int, tls: ssl.SSLContext, server_name: str) -> bytes:
    """The certificate (DER) that a member presents. Raises OSError and its subclasses TimeoutError and ssl.SSLError."""
    async with asyncio.timeout(_SHOW_SECONDS):
        _, writer = await asyncio.open_connection(host, port, ssl=tls, server_hostname=server_name)
    try:
        shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return shown
    finally:
        writer.close()
