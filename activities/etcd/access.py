"""How those beside an etcd come to it and its sidecar: TLS from the Secrets that its ``Etcd`` resource names."""

import asyncio
import base64
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from activities.etcd.client import client_tls
from activities.kube.client import KubeClient
from api.resources import SECRET


async def tls_of(client: KubeClient, etcd: Mapping[str, Any]) -> ssl.SSLContext:
    """Client TLS for the members of an etcd.

    Raises NotFound, KeyError, ValueError or ssl.SSLError where a Secret is missing or not as it should be.
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
