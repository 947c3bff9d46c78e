"""The Secrets of a control plane, created before the components that mount them."""

import asyncio
import base64
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import Any

from pydantic import Field
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.clusters import Clusters, ClusterView, patch_cluster
from activities.components import metrics_server
from activities.secrets.configs import (
    CertificateAuthority,
    EncryptionConfiguration,
    EtcdEncryptionKey,
    GenericTokenKubeconfig,
    ServiceAccountKey,
    ShootCertificate,
    SignedBy,
    SSHKeyPair,
    StaticToken,
    Usage,
    VPNTlsAuth,
)
from activities.secrets.manager import MANAGED_BY, SECRETS_MANAGER, SecretsManager, UnknownSecret, Which
from activities.seed.shoot_state import not_restorable, read_shoot_state
from api import constants
from api.constants import ENCRYPTION_KEY, KEY_POPULATED
from api.contracts.operations import OperationType, ShootRef, ShootTask, TaskResult
from api.contracts.rotation import Phase
from api.decisions import ssh
from api.decisions.encryption import DEFAULT_PROVIDER, Encryption
from api.decisions.shoot_state import NotRestorable, restored_secret
from api.model import ApiModel
from api.resources import CONFIG_MAP, DEPLOYMENT, INTERNAL_SECRET, SECRET, SHOOT
from kube.client import KubeClient
from kube.errors import AlreadyExists
from kube.objects import owner_reference

MANAGER = "gardenlet"

CLUSTER_CA = "ca"
CLIENT_CA = "ca-client"
KUBELET_CA = "ca-kubelet"
SERVICE_ACCOUNT_KEY = "service-account-key"
ENCRYPTION_CONFIGURATION = "kube-apiserver-etcd-encryption-configuration"
STATIC_TOKEN = "kube-apiserver-static-token"
GENERIC_KUBECONFIG = "generic-token-kubeconfig"
VPN_TLS_AUTH = "vpn-seed-server-tlsauth"
SSH_KEYPAIR = "ssh-keypair"

_AUTHORITIES = ("ca-etcd", "ca-etcd-peer", "ca-front-proxy")
_AUTHORITIES_WITH_WORKERS = (KUBELET_CA, "ca-metrics-server", "ca-vpn")

IN_CLUSTER_SERVER = "https://kube-apiserver"
"""URL at which pods of the control plane reach the API server."""


METRICS_SERVER = ShootCertificate(
    name=metrics_server.NAME,
    common_name=metrics_server.NAME,
    usage=Usage.SERVER,
    signer="ca-metrics-server",
    # The API server, the only client of metrics-server, gets the new CA bundle by the same ManagedResource.
    signed_by=SignedBy.CURRENT,
    dns_names=tuple(
        f"{metrics_server.NAME}{suffix}"
        for suffix in ("", ".kube-system", ".kube-system.svc", ".kube-system.svc.cluster.local")
    ),
)
VPN_CLIENT = ShootCertificate(
    name="vpn-shoot-client", common_name="vpn-shoot-client", usage=Usage.CLIENT, signer="ca-vpn"
)


class CleanupSecrets(ApiModel):
    """Input of ``cleanup_secrets``."""

    task: ShootTask
    names: tuple[str, ...] = Field(min_length=1)
    """All Secrets that the activities of the flow have reported; Secrets that are not named are deleted."""


class SecretActivities:
    """One instance per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    @activity.defn
    async def init_secrets(self, task: ShootTask) -> TaskResult:
        """Create the Secrets that all components share: CAs, keys, tokens; copy some of them to the garden.

        A second run computes the same names and finds the Secrets of the first one; it applies the copies in the
        garden again. On restore, the Secrets in the ShootState are created first.
        """
        cluster = await self._clusters.cluster(task.technical_id)
        if task.operation is OperationType.RESTORE:
            await self._restore(task)
        manager = await self._load(task, cluster)
        names = ["ca", *_AUTHORITIES, *(() if cluster.workerless else _AUTHORITIES_WITH_WORKERS)]
        making: list[Awaitable[Any]] = [
            *(manager.generate(CertificateAuthority(name)) for name in names),
            manager.generate(CertificateAuthority(CLIENT_CA, hashed_name=True)),
            manager.generate(ServiceAccountKey(SERVICE_ACCOUNT_KEY)),
            manager.generate(StaticToken(STATIC_TOKEN)),
            generate_encryption_configuration(self._clusters.seed, cluster, manager),
        ]
        if not cluster.workerless:
            making.append(manager.generate(VPNTlsAuth(VPN_TLS_AUTH)))
        if ssh.has_access(cluster.shoot):
            making.append(manager.generate(SSHKeyPair(SSH_KEYPAIR)))
        await asyncio.gather(*making)
        if cluster.hibernated and not cluster.workerless:
            # Kept until the wake-up. With new ones, the pods that use them would be replaced as soon as they run.
            await asyncio.gather(*map(manager.generate, (METRICS_SERVER, VPN_CLIENT)))
        await self._generic_kubeconfig(task, cluster, manager)
        await self._publish(task, cluster, manager)
        return TaskResult(secrets=manager.generated, note=f"{len(manager.generated)} secrets")

    @activity.defn
    async def cleanup_secrets(self, request: CleanupSecrets) -> TaskResult:
        """Delete Secrets of the secrets manager that no activity of this flow has used; a second run finds them gone.

        Run this only at the end of a flow whose tasks have all succeeded. The API server then trusts the new client
        authority and has a certificate of the new cluster authority. For this reason, this activity gives the garden
        the new client authority when a rotation is prepared, and takes the old cluster authority from the garden when
        the rotation is completed. A second run applies the same copies again.
        """
        task = request.task
        cluster = await self._clusters.cluster(task.technical_id)
        manager = await self._load(task, cluster)
        phase = _phase_of_authorities(cluster.shoot)
        if phase.preparing:
            await _apply(self._clusters.garden, _client_authority(task.shoot, manager, Which.CURRENT))
        if phase is Phase.COMPLETING:
            await _apply(self._clusters.garden, _cluster_bundle(task.shoot, manager))
        deleted = await manager.cleanup(request.names)
        return TaskResult(note=f"{len(deleted)} unused secrets deleted")

    async def _load(self, task: ShootTask, cluster: ClusterView) -> SecretsManager:
        return await SecretsManager.of_shoot(self._clusters.seed, task.technical_id, cluster.shoot)

    async def _generic_kubeconfig(self, task: ShootTask, cluster: ClusterView, manager: SecretsManager) -> None:
        """Create the kubeconfig of all pods of the control plane, and write its name to the Cluster for extensions."""
        made = await manager.generate(
            GenericTokenKubeconfig(
                GENERIC_KUBECONFIG, server=IN_CLUSTER_SERVER, server_ca=manager.get(CLUSTER_CA).data["bundle.crt"]
            )
        )
        annotations = {constants.GENERIC_TOKEN_KUBECONFIG_NAME: made.name}
        known = cluster.cluster["metadata"].get("annotations") or {}
        if known.get(constants.GENERIC_TOKEN_KUBECONFIG_NAME) == made.name:
            return
        await patch_cluster(self._clusters.seed, task.technical_id, {"metadata": {"annotations": annotations}})

    async def _publish(self, task: ShootTask, cluster: ClusterView, manager: SecretsManager) -> None:
        phase = _phase_of_authorities(cluster.shoot)
        # Until the API server trusts a new authority, a kubeconfig that it signed would be refused.
        is_untrusted = phase.preparing and manager.has_old(CLIENT_CA)
        copies = [_client_authority(task.shoot, manager, Which.OLD if is_untrusted else Which.CURRENT)]
        # Until the API server has a certificate of the new authority, clients need the published bundle with the old.
        if phase is not Phase.COMPLETING:
            copies.append(_cluster_bundle(task.shoot, manager))
        if not cluster.workerless:
            bundle = manager.get(KUBELET_CA).data["bundle.crt"]
            copies.append(_public_bundle(task.shoot, KUBELET_CA, "shoot-kubelet-ca", bundle))
        if ssh.has_access(cluster.shoot):
            generations = [(SSH_KEYPAIR, Which.CURRENT)]
            if manager.has_old(SSH_KEYPAIR):
                generations.append((f"{SSH_KEYPAIR}.old", Which.OLD))
            copies += [
                garden_object(task.shoot, "v1", "Secret", suffix, role=SSH_KEYPAIR)
                | {"type": "Opaque", "data": _encoded(manager.get(SSH_KEYPAIR, which).data)}
                for suffix, which in generations
            ]
        garden = self._clusters.garden
        await asyncio.gather(*(_apply(garden, copy) for copy in copies))
        if not ssh.has_access(cluster.shoot):
            names = [f"{task.shoot.name}.{suffix}" for suffix in (SSH_KEYPAIR, f"{SSH_KEYPAIR}.old")]
            await asyncio.gather(*(_drop(garden, name, task.shoot.namespace) for name in names))

    async def _restore(self, task: ShootTask) -> None:
        """Create the Secrets in the ShootState; Secrets that exist stay as they are.

        New Secrets in their place could not decrypt the content of etcd, and no node would trust new CAs.
        """
        state = await read_shoot_state(self._clusters, task)
        if state is None and not await self._clusters.seed.list(
            SECRET, task.technical_id, labels=f"{MANAGED_BY}={SECRETS_MANAGER}"
        ):
            raise ApplicationError(
                f"ShootState {task.shoot} does not exist, which holds the keys of the control plane: bring the "
                "source seed back, or restore the ShootState from a backup of the garden, and retry",
                type="ShootStateMissing",
                non_retryable=True,
            )
        try:
            wanted = [restored_secret(each, task.technical_id) for each in (state.secrets if state else ())]
        except NotRestorable as error:
            raise not_restorable(task, error) from None

        async def put_back(item: Mapping[str, Any]) -> None:
            with suppress(AlreadyExists):
                await self._clusters.seed.create(item)

        await asyncio.gather(*map(put_back, wanted))


async def generate_encryption_configuration(seed: KubeClient, cluster: ClusterView, manager: SecretsManager) -> None:
    """Create the encryption key, and the API server's encryption configuration, whose first key encrypts.

    A key keeps the encryption provider that was wanted when the key was created. To change the provider takes a
    rotation, which creates another key.
    """
    wanted, at_rest = Encryption.wanted(cluster.shoot), Encryption.at_rest(cluster.shoot)
    provider = wanted.provider
    with suppress(UnknownSecret):
        made = manager.get(ENCRYPTION_KEY, Which.CURRENT)
        provider = made.data.get("provider", DEFAULT_PROVIDER.encode()).decode()
    current = await manager.generate(EtcdEncryptionKey(ENCRYPTION_KEY, provider))
    keys = [current.data]
    if manager.has_old(ENCRYPTION_KEY):
        old = manager.get(ENCRYPTION_KEY, Which.OLD)
        server = await seed.find(DEPLOYMENT, "kube-apiserver", cluster.technical_id)
        populated = KEY_POPULATED in ((server or {}).get("metadata", {}).get("annotations") or {})
        # A key encrypts only after every replica can read with it. Source: spec/credentials.md 6.
        keys = [current.data, old.data] if populated else [old.data, current.data]
    resources = ("secrets", *sorted(wanted.resources))
    plain = tuple(sorted(at_rest.resources - wanted.resources))
    await manager.generate(EncryptionConfiguration(ENCRYPTION_CONFIGURATION, tuple(keys), resources, plain))


async def _apply(garden: KubeClient, wanted: dict[str, Any]) -> None:
    await garden.apply(wanted, manager=MANAGER)


async def _drop(garden: KubeClient, name: str, namespace: str) -> None:
    if await garden.find(SECRET, name, namespace) is not None:
        await garden.delete(SECRET, name, namespace)


def garden_object(shoot: ShootRef, api_version: str, kind: str, suffix: str, *, role: str = "") -> dict[str, Any]:
    """Manifest, without data, of a copy in the project's namespace; the copy is deleted with the Shoot."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": f"{shoot.name}.{suffix}",
            "namespace": shoot.namespace,
            "labels": {
                constants.ROLE: role or suffix,
                constants.SHOOT_NAME: shoot.name,
                constants.SHOOT_UID: shoot.uid,
            },
            "ownerReferences": [owner_reference(SHOOT, shoot.name, shoot.uid)],
        },
    }


def _phase_of_authorities(shoot: Mapping[str, Any]) -> Phase:
    """Phase of the rotation of the certificate authorities."""
    rotation = ((shoot.get("status") or {}).get("credentials") or {}).get("rotation") or {}
    return Phase((rotation.get("certificateAuthorities") or {}).get("phase") or "")


def _client_authority(shoot: ShootRef, manager: SecretsManager, which: Which) -> dict[str, Any]:
    """The copy of the client authority with which the garden signs kubeconfigs."""
    return garden_object(shoot, INTERNAL_SECRET.api_version, "InternalSecret", CLIENT_CA) | {
        "type": "Opaque",
        "data": _encoded(manager.get(CLIENT_CA, which).data),
    }


def _cluster_bundle(shoot: ShootRef, manager: SecretsManager) -> dict[str, Any]:
    """The copy of the authorities by which clients verify the API server."""
    return _public_bundle(shoot, "ca-cluster", "shoot-ca", manager.get(CLUSTER_CA).data["bundle.crt"])


def _public_bundle(shoot: ShootRef, suffix: str, discovery: str, bundle: bytes) -> dict[str, Any]:
    wanted = garden_object(shoot, "v1", CONFIG_MAP.kind, suffix)
    wanted["metadata"]["labels"] |= {
        constants.DISCOVERY_PUBLIC: discovery,
        constants.UPDATE_RESTRICTION: "true",
    }
    return {**wanted, "data": {"ca.crt": bundle.decode()}}


def ssh_public_keys(secrets: SecretsManager) -> list[str]:
    """Newest SSH public key, and the previous one, if any: all nodes know a new key before the old one is deleted."""
    kept = [Which.CURRENT, *([Which.OLD] if secrets.has_old(SSH_KEYPAIR) else [])]
    return [secrets.get(SSH_KEYPAIR, which).data["id_rsa.pub"].decode().strip() for which in kept]


def _encoded(data: Mapping[str, bytes]) -> dict[str, str]:
    return {key: base64.b64encode(value).decode() for key, value in data.items()}
