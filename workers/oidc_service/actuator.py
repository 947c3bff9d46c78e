"""The actuator of type ``shoot-oidc-service``: it deploys the authenticator of a control plane."""

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from activities.secrets.crypto import TEN_YEARS, KeyAlgorithm, KeyPair, Usage, self_signed_ca, signed, validity_of
from api.constants import GENERIC_TOKEN_KUBECONFIG_NAME
from api.resources import (
    CONFIG_MAP,
    DEPLOYMENT,
    EXTENSION,
    POD_DISRUPTION_BUDGET,
    SECRET,
    SERVICE,
)
from kube.cache import Caches
from kube.client import KubeClient
from workers.extension import (
    Actuator,
    Extension,
    apply_managed_resource,
    delete_managed_resource,
    delete_quietly,
)
from workers.oidc_service import manifests
from workers.oidc_service.manifests import CERTIFICATES, MANAGED_RESOURCE, NAME, TYPE, WEBHOOK, Authenticator

_RENEWED_BEFORE = timedelta(days=365)
_ROTATION = "rotation"
"""Key of the Secret with the begin of the Shoot's CA rotation for which the certificates were made."""


class OidcServiceActuator(Actuator):
    """Every method may run twice: it finds the certificates of the first run, and writes the same objects again."""

    resource = EXTENSION
    type = TYPE

    def __init__(self, seed: KubeClient, caches: Caches) -> None:
        super().__init__(seed)
        self._caches = caches

    async def reconcile(self, extension: Extension) -> dict[str, Any]:
        """Deploy the authenticator, and the Secret by which the gardenlet configures the API server to ask it.

        Neither waits for the authenticator: on creation its token exists only once the API server runs.
        """
        namespace = extension.namespace
        certificates = await self._certificates(extension)
        await self._seed.apply(_secret(CERTIFICATES, namespace, certificates), manager=TYPE)
        for each in manifests.objects(_authenticator(extension)):
            await self._seed.apply(each, manager=TYPE)
        names = ("ca.crt", "client.crt", "client.key")
        ca, certificate, key = (base64.b64encode(certificates[name]).decode() for name in names)
        await self._seed.apply(manifests.webhook(namespace, ca, certificate, key), manager=TYPE)
        await apply_managed_resource(self._seed, namespace, MANAGED_RESOURCE, manifests.shoot_objects(), manager=TYPE)
        return {}

    async def delete(self, extension: Extension) -> None:
        """Delete the kind OpenIDConnect with all its objects, then the authenticator."""
        await self._delete(extension.namespace, keep_objects=False)

    async def force_delete(self, extension: Extension) -> None:
        """Delete only the objects in the seed: the shoot cannot be reached any more."""
        await self._delete_in_seed(extension.namespace)
        await delete_quietly(self._seed, SECRET, f"managedresource-{MANAGED_RESOURCE}", extension.namespace)

    async def migrate(self, extension: Extension) -> dict[str, Any]:
        """Leave the OpenIDConnects in the shoot. The destination makes certificates of its own."""
        await self._delete(extension.namespace, keep_objects=True)
        return {}

    async def _delete(self, namespace: str, *, keep_objects: bool) -> None:
        await delete_managed_resource(self._seed, self._caches, namespace, MANAGED_RESOURCE, keep_objects=keep_objects)
        await self._delete_in_seed(namespace)

    async def _delete_in_seed(self, namespace: str) -> None:
        for kind, name in (
            (SECRET, WEBHOOK),
            (DEPLOYMENT, NAME),
            (POD_DISRUPTION_BUDGET, NAME),
            (SERVICE, NAME),
            (SECRET, f"shoot-access-{NAME}"),
            (CONFIG_MAP, f"extension-{TYPE}-config"),
            (SECRET, CERTIFICATES),
        ):
            await delete_quietly(self._seed, kind, name, namespace)

    async def _certificates(self, extension: Extension) -> Mapping[str, bytes]:
        """Authority and certificates from the Secret; new ones if there are none, or if they end soon.

        New ones come with the Shoot's CA rotation, too. Until the API server has restarted with them, which is part of
        the same operation, it cannot ask the authenticator. The authority's key is not kept: it signs nothing else.
        """
        namespace, rotation = extension.namespace, _rotation_of(extension).encode()
        found = await self._seed.find(SECRET, CERTIFICATES, namespace)
        data = {key: _decoded(value) for key, value in ((found or {}).get("data") or {}).items()}
        now = datetime.now(UTC)
        if _lasts(data, now) and data.get(_ROTATION, b"") == rotation:
            return data
        authority = self_signed_ca(f"extension-{TYPE}", algorithm=KeyAlgorithm.P256, now=now, validity=TEN_YEARS)
        server = _signed(NAME, authority, Usage.SERVER, now, (NAME, f"{NAME}.{namespace}", f"{NAME}.{namespace}.svc"))
        client = _signed("kube-apiserver", authority, Usage.CLIENT, now, ())
        return {
            "ca.crt": authority.certificate,
            "tls.crt": server.certificate,
            "tls.key": server.key,
            "client.crt": client.certificate,
            "client.key": client.key,
            _ROTATION: rotation,
        }


def _signed(name: str, authority: KeyPair, usage: Usage, now: datetime, hosts: tuple[str, ...]) -> KeyPair:
    return signed(
        name, ca=authority, usage=usage, algorithm=KeyAlgorithm.P256, now=now, validity=TEN_YEARS, dns_names=hosts
    )


def _rotation_of(extension: Extension) -> str:
    """When the Shoot's last CA rotation began; empty if there was none."""
    rotation = ((extension.shoot.get("status") or {}).get("credentials") or {}).get("rotation") or {}
    return str((rotation.get("certificateAuthorities") or {}).get("lastInitiationTime") or "")


def _lasts(data: Mapping[str, bytes], now: datetime) -> bool:
    """Whether all certificates are there and stay valid for a while."""
    if not all(data.get(key) for key in ("ca.crt", "tls.crt", "tls.key", "client.crt", "client.key")):
        return False
    try:
        return all(validity_of(data[key])[1] - _RENEWED_BEFORE > now for key in ("ca.crt", "tls.crt", "client.crt"))
    except ValueError:
        return False


def _authenticator(extension: Extension) -> Authenticator:
    cluster = extension.cluster or {}
    networks = (((cluster.get("spec") or {}).get("seed") or {}).get("spec") or {}).get("networks") or {}
    available = (extension.shoot["spec"].get("controlPlane") or {}).get("highAvailability") or {}
    tolerance = (available.get("failureTolerance") or {}).get("type")
    annotations = (cluster.get("metadata") or {}).get("annotations") or {}
    return Authenticator(
        extension.namespace,
        annotations.get(GENERIC_TOKEN_KUBECONFIG_NAME) or "generic-token-kubeconfig",
        replicas=0 if extension.hibernated else 2 if tolerance else 1,
        blocked_networks=[networks[kind] for kind in ("pods", "services", "nodes") if networks.get(kind)],
        failure_tolerance=tolerance,
    )


def _secret(name: str, namespace: str, data: Mapping[str, bytes]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(manifests.SELECT)},
        "type": "Opaque",
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }


def _decoded(value: str) -> bytes:
    try:
        return base64.b64decode(value)
    except (binascii.Error, ValueError):
        return b""
