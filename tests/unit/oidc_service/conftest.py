"""An issuer, an OpenIDConnect for it, and the keys as the authenticator keeps them."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api.authentication.v1alpha1.openid_connect import OpenIDConnect
from tests import oidc
from workers.oidc_service.provider_keys import ProviderKeys

CLIENT = "kubernetes"


def connect(issuer: oidc.Issuer, name: str = "company", **spec: Any) -> OpenIDConnect:
    content = {
        "issuerURL": issuer.url,
        "clientID": CLIENT,
        "caBundle": base64.b64encode(issuer.ca_file.read_bytes()).decode(),
    }
    metadata = {"name": name, "uid": f"uid-of-{name}"}
    return OpenIDConnect.of(
        {
            "apiVersion": "authentication.gardener.cloud/v1alpha1",
            "kind": "OpenIDConnect",
            "metadata": metadata,
            "spec": content | spec,
        }
    )


def token(issuer: oidc.Issuer, name: str, *groups: str, **claims: Any) -> str:
    return issuer.token(name, *groups, **{"aud": CLIENT, **claims})


@pytest.fixture
def issuer(tmp_path: Path) -> Iterator[oidc.Issuer]:
    (tmp_path / "issuer").mkdir()
    with oidc.issuer(tmp_path / "issuer") as running:
        yield running


@pytest.fixture
def keys() -> ProviderKeys:
    """The issuer is on this machine, which is no address for issuers of tenants."""
    return ProviderKeys(check_addresses=False)
