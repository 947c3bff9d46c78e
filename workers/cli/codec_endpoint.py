"""Client of the codec endpoint for commands: it authenticates with the user's credentials for the garden."""

import ssl
from collections.abc import Sequence
from pathlib import Path

from google.protobuf import json_format
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.converter import PayloadCodec

from kube.client import load_certificate
from kube.kubeconfig import Endpoint


class RemoteCodec(PayloadCodec):
    """Decrypts payloads with a codec endpoint: an operator who only reads histories needs no key.

    ``user``: credentials in the garden's kubeconfig; None for an endpoint without authentication.
    ``ca_file``: PEM file of the authority of the endpoint's certificate; None: the authorities of this machine.
    """

    def __init__(self, endpoint: str, user: Endpoint | None = None, ca_file: Path | None = None) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._user = user
        self._tls = ssl.create_default_context(cafile=ca_file)
        if user is not None and user.certificate and user.key:
            load_certificate(self._tls, user.certificate, user.key)

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        raise RuntimeError("a codec endpoint decodes only: to send something, name a key file by --codec-key")

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        import aiohttp

        body = json_format.MessageToJson(Payloads(payloads=payloads), indent=None)
        url = f"{self._endpoint}/decode"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, data=body, headers=self._headers(), ssl=self._tls) as answer,
        ):
            text = await answer.text()
            if answer.status != 200:
                raise RuntimeError(f"codec endpoint {self._endpoint} answered {answer.status}: {text}")
        return list(json_format.Parse(text, Payloads()).payloads)

    def _headers(self) -> dict[str, str]:
        if self._user is None:
            return {}
        token = self._user.token_file.read_text().strip() if self._user.token_file else self._user.token
        return {"Authorization": f"Bearer {token}"} if token else {}
