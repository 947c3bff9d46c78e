"""Activities of a rotation of credentials inside a shoot, in addition to new Secrets for its components.

Names, labels and their order: spec/credentials.md 4 to 6.
"""

import asyncio
import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.clusters import Clusters, ClusterView
from activities.heartbeat import heartbeating, last_position
from activities.secrets import crypto
from activities.secrets.manager import Handle, SecretsManager, Which
from activities.shoot import survey
from activities.shoot.rewriting import Rewriting, each_of, paced
from activities.shoot.survey import KEY_NAME, annotations
from api import resources
from api.constants import ENCRYPTION_KEY, ETCD_SNAPSHOTTED, KEY_POPULATED, RESOURCES_LABELED
from api.contracts.kubeconfigs import issued
from api.contracts.operations import ShootTask, TaskResult
from api.contracts.rotation import Kind, Survey, SurveyRequest, User
from api.decisions.encryption import Encryption
from api.decisions.rotation import status_of
from api.names import issued_kubeconfigs
from kube.cache import Cache
from kube.client import KubeClient
from kube.errors import AlreadyExists

CA_BUNDLE_NAME = "credentials.gardener.cloud/ca-bundle-name"
"""Label of a namespace's root CA ConfigMap; its value is the control plane's bundle that the ConfigMap holds."""
ROOT_CA = "kube-root-ca.crt"
_RENEW_AT = "serviceaccount.resources.gardener.cloud/token-renew-timestamp"
_TOKEN_SECRETS = "resources.gardener.cloud/purpose=token-requestor"
_ACCOUNT_OF_TOKEN = "kubernetes.io/service-account.name"
_TOKEN = "kubernetes.io/service-account-token"
_API_SERVER = "kube-apiserver"

CLIENT_AUTHORITIES = "extension-apiserver-authentication"
"""ConfigMap of a shoot with the CAs by which other servers verify client certificates, as the API server does."""
_SYSTEM = "kube-system"
_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)

MINUTE = 60.0
_ROOT_CA_SECONDS = 4.5 * MINUTE
"""A little less than the timeout of the task. Source: spec/flows.md 2."""
_TOKEN_SECONDS = 0.5 * MINUTE
_REMADE_SECONDS = 1.5 * MINUTE
"""The API server checks ``CLIENT_AUTHORITIES`` each minute, and at once when the ConfigMap is deleted."""


class RotationActivities:
    """One instance per gardenlet."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    @activity.defn
    async def wait_root_ca_configmaps(self, task: ShootTask) -> TaskResult:
        """Wait until all namespaces publish the present CA bundle to their pods, and label the ConfigMaps with it.

        Raises:
            ApplicationError: ``NotReady``, with the namespaces that still publish another bundle.
        """
        view = await self._clusters.cluster(task.technical_id)
        bundle = (await self._secrets(task, view)).get("ca")
        wanted = bundle.data["bundle.crt"].decode()
        shoot = await self._clusters.shoot(task.technical_id)
        cache = Cache(shoot, resources.CONFIG_MAP, fields=f"metadata.name={ROOT_CA}")
        behind: list[str] = []

        def published(_: object) -> bool:
            behind[:] = sorted(
                item["metadata"]["namespace"]
                for item in cache.list()
                if (item.get("data") or {}).get("ca.crt") != wanted and "deletionTimestamp" not in item["metadata"]
            )
            return not behind

        try:
            async with cache:
                await heartbeating(
                    cache.wait_until(published, _ROOT_CA_SECONDS), details=lambda: f"behind: {', '.join(behind[:5])}"
                )
                found = cache.list()
        except TimeoutError:
            raise ApplicationError(
                f"ConfigMaps {ROOT_CA} of shoot {task.technical_id} do not hold the new CA in namespaces "
                f"{', '.join(behind[:10])}; is its kube-controller-manager running?",
                type="NotReady",
            ) from None
        await each_of(found, lambda item: self._label(task, item, bundle.name))
        return TaskResult(note=f"{len(found)} namespaces")

    async def _label(self, task: ShootTask, item: Mapping[str, Any], bundle: str) -> None:
        metadata = item["metadata"]
        if (metadata.get("labels") or {}).get(CA_BUNDLE_NAME) == bundle:
            return
        shoot = await self._clusters.shoot(task.technical_id)
        patch = {"metadata": {"labels": {CA_BUNDLE_NAME: bundle}}}
        await shoot.patch(resources.CONFIG_MAP, ROOT_CA, metadata["namespace"], patch)

    @activity.defn
    async def drop_old_client_authorities(self, task: ShootTask) -> TaskResult:
        """Make extension API servers, kube-controller-manager and kube-scheduler drop the old client CAs.

        They read the client CAs from a ConfigMap. The API server adds its CAs to this ConfigMap, and removes none
        before it expires. So the ConfigMap is deleted if it holds other CAs, and the API server creates it again with
        the present ones. A second run finds the present CAs.

        Raises TimeoutError if the API server does not create the ConfigMap again.
        """
        view = await self._clusters.cluster(task.technical_id)
        secrets = await self._secrets(task, view)
        present = {
            each
            for name in ("ca-client", "ca-front-proxy")
            for each in _certificates(secrets.get(name).data["bundle.crt"].decode())
        }
        shoot = await self._clusters.shoot(task.technical_id)
        live = await shoot.find(resources.CONFIG_MAP, CLIENT_AUTHORITIES, _SYSTEM)
        told = _certificates("".join(((live or {}).get("data") or {}).values()))
        old = told - present
        if live is not None and old:
            await shoot.delete(resources.CONFIG_MAP, CLIENT_AUTHORITIES, _SYSTEM, uid=live["metadata"]["uid"])
        cache = Cache(shoot, resources.CONFIG_MAP, _SYSTEM, fields=f"metadata.name={CLIENT_AUTHORITIES}")
        try:
            async with cache:
                await heartbeating(cache.wait_until(lambda each: each.list() or None, _REMADE_SECONDS))
        except TimeoutError:
            raise TimeoutError(
                f"ConfigMap {_SYSTEM}/{CLIENT_AUTHORITIES} of shoot {task.technical_id} does not exist; "
                "its API server must create it again: does the API server run?"
            ) from None
        return TaskResult(note=f"{len(old)} old authorities")

    # Clients that use old credentials

    @activity.defn
    async def find_users_of_old_credentials(self, request: SurveyRequest) -> Survey:
        """Find nodes, tokens, namespaces, extensions and kubeconfigs that the end of a rotation would cut off."""
        view = await self._clusters.cluster(request.technical_id)
        secrets = await SecretsManager.of_shoot(self._clusters.seed, request.technical_id, view.shoot)
        shoot = await self._clusters.shoot(request.technical_id)
        match request.kind:
            case Kind.CERTIFICATE_AUTHORITIES:
                found = await self._users_of_old_authorities(request, view, secrets, shoot)
            case Kind.SERVICE_ACCOUNT_KEY:
                found = await self._users_of_old_token_key(request, secrets, shoot)
            case _:
                found = []
        return Survey(users=tuple(found))

    async def _users_of_old_authorities(
        self, request: SurveyRequest, view: ClusterView, secrets: SecretsManager, shoot: KubeClient
    ) -> list[User]:
        seed, namespace = self._clusters.seed, request.technical_id
        bundle = secrets.get("ca").data["bundle.crt"].decode()
        issuers = {"client": secrets.get("ca-client", Which.CURRENT).name}
        if not view.workerless:
            issuers["serving"] = secrets.get("ca-kubelet", Which.CURRENT).name
        nodes, published, accesses, extensions, given_out = await asyncio.gather(
            shoot.list(resources.NODE, metadata_only=True),
            shoot.list(resources.CONFIG_MAP, fields=f"metadata.name={ROOT_CA}"),
            seed.list(resources.SECRET, namespace, labels=_TOKEN_SECRETS),
            _extensions(seed, namespace),
            self._clusters.garden.find(
                resources.CONFIG_MAP, issued_kubeconfigs(request.shoot.name), request.shoot.namespace
            ),
        )
        now = datetime.now(UTC)
        return [
            *survey.nodes(nodes, issuers),
            # No pod reads these ConfigMaps in a Shoot without workers. No task of the flow waits for them there, and
            # kube-controller-manager may write them after the end of the flow.
            *([] if view.workerless else survey.namespaces(published, bundle)),
            *survey.kubeconfigs_of_ours(accesses, bundle),
            *survey.extensions(extensions, status_of(view.shoot)[Kind.CERTIFICATE_AUTHORITIES]["lastInitiationTime"]),
            *survey.issued_kubeconfigs(issued(given_out), issuers["client"], now),
        ]

    async def _users_of_old_token_key(
        self, request: SurveyRequest, secrets: SecretsManager, shoot: KubeClient
    ) -> list[User]:
        key = secrets.get("service-account-key", Which.CURRENT)
        ours, theirs, accounts = await asyncio.gather(
            self._clusters.seed.list(resources.SECRET, request.technical_id, labels=_TOKEN_SECRETS),
            shoot.list(resources.SECRET, fields=f"type={_TOKEN}"),
            shoot.list(resources.SERVICE_ACCOUNT, labels=f"{KEY_NAME}={key.name}"),
        )
        return [
            *survey.tokens_of_ours(ours, key.name),
            *survey.static_tokens(theirs, accounts, crypto.key_id(key.data["id_rsa.pub"])),
        ]

    # The key that signs service accounts' tokens

    @activity.defn
    async def renew_access_tokens(self, task: ShootTask) -> TaskResult:
        """Have all tokens of the control plane renewed, once for each key; wait until they are renewed.

        Raises TimeoutError, with the names of the Secrets whose tokens are not renewed.
        """
        view = await self._clusters.cluster(task.technical_id)
        key = (await self._secrets(task, view)).get("service-account-key", Which.CURRENT).name
        seed, namespace = self._clusters.seed, task.technical_id
        waiting: list[str] = []

        async def renew(secret: dict[str, Any]) -> None:
            if annotations(secret).get(KEY_NAME) != key:
                change = {"annotations": {_RENEW_AT: None, KEY_NAME: key}}
                await seed.patch(resources.SECRET, secret["metadata"]["name"], namespace, {"metadata": change})

        def renewed(_: object) -> bool:
            waiting[:] = sorted(
                item["metadata"]["name"] for item in cache.list(namespace) if _RENEW_AT not in annotations(item)
            )
            return not waiting

        found = await seed.list(resources.SECRET, namespace, labels=_TOKEN_SECRETS)
        await each_of(found, renew)
        cache = Cache(seed, resources.SECRET, namespace, labels=_TOKEN_SECRETS)
        try:
            async with cache:
                await heartbeating(cache.wait_until(renewed, _TOKEN_SECONDS), details=lambda: ", ".join(waiting))
        except TimeoutError:
            raise TimeoutError(
                f"tokens in Secrets {', '.join(waiting)} of {namespace} are not renewed; "
                "is its resource manager running?"
            ) from None
        return TaskResult(note=f"{len(found)} tokens")

    @activity.defn
    async def create_sa_secrets(self, task: ShootTask) -> TaskResult:
        """Give each account with token Secrets another one, signed with the new key, as the first in its list.

        A second run skips accounts that have the key's label.
        """
        view = await self._clusters.cluster(task.technical_id)
        key = (await self._secrets(task, view)).get("service-account-key", Which.CURRENT)
        shoot = await self._clusters.shoot(task.technical_id)
        found = await shoot.list(resources.SERVICE_ACCOUNT, labels=f"{KEY_NAME}!={key.name}")
        accounts = [each for each in found if each.get("secrets")]

        async def one(account: dict[str, Any]) -> None:
            metadata = account["metadata"]
            name = _token_secret_name(metadata, key)
            await _create_token_secret(shoot, metadata, name)
            others = [each for each in account["secrets"] if each["name"] != name]
            await _list_secrets(shoot, metadata, [{"name": name}, *others], label=key.name)

        await heartbeating(paced(accounts, one))
        return TaskResult(note=f"{len(accounts)} accounts")

    @activity.defn
    async def delete_old_sa_secrets(self, task: ShootTask) -> TaskResult:
        """Delete the tokens of the old key of accounts that got a token of the new key; other tokens stay.

        A second run skips the accounts that are done: they no longer have the label.
        """
        view = await self._clusters.cluster(task.technical_id)
        rotation = status_of(view.shoot).get(Kind.SERVICE_ACCOUNT_KEY) or {}
        before = datetime.fromisoformat(rotation["lastInitiationFinishedTime"])
        key = (await self._secrets(task, view)).get("service-account-key", Which.CURRENT)
        shoot = await self._clusters.shoot(task.technical_id)
        accounts = await shoot.list(resources.SERVICE_ACCOUNT, labels=KEY_NAME)

        async def one(account: dict[str, Any]) -> None:
            metadata = account["metadata"]
            kept = []
            for each in account.get("secrets") or ():
                secret = await shoot.find(resources.SECRET, each["name"], metadata["namespace"])
                new = each["name"] == _token_secret_name(metadata, key)
                if secret is None:
                    continue
                if new or datetime.fromisoformat(secret["metadata"]["creationTimestamp"]) >= before:
                    kept.append(each)
                    continue
                uid = secret["metadata"]["uid"]
                await shoot.delete(resources.SECRET, each["name"], metadata["namespace"], uid=uid)
            await _list_secrets(shoot, metadata, kept, label=None)

        await heartbeating(paced(accounts, one))
        return TaskResult(note=f"{len(accounts)} accounts")

    # The key that encrypts objects in etcd

    @activity.defn
    async def rewrite_add_label(self, task: ShootTask) -> TaskResult:
        """Rewrite all encrypted objects by a label, so that the new key encrypts them; then mark the API server.

        A second run continues with the page in the last heartbeat of the first one; a run in another attempt of the
        flow begins with the first page. Neither of them writes objects that have the label already (see
        ``activities.shoot.rewriting``), and neither writes anything once the mark, an annotation, exists.
        """
        rewriting = Rewriting(last_position())
        return await heartbeating(
            self._add_label(task, rewriting), details=rewriting.progress, position=rewriting.position
        )

    async def _add_label(self, task: ShootTask, rewriting: Rewriting) -> TaskResult:
        if RESOURCES_LABELED in await self._marks(task):
            return TaskResult(note="done before")
        view = await self._clusters.cluster(task.technical_id)
        key = (await self._secrets(task, view)).get(ENCRYPTION_KEY, Which.CURRENT).name
        shoot = await self._clusters.shoot(task.technical_id)
        await rewriting.run(shoot, _encrypted(view), f"{KEY_NAME}!={key}", key)
        await self._mark(task, {RESOURCES_LABELED: "true"})
        return TaskResult(note=rewriting.progress())

    @activity.defn
    async def rewrite_remove_label(self, task: ShootTask) -> TaskResult:
        """Remove the label again, and then the marks; a second run continues like that of ``rewrite_add_label``."""
        rewriting = Rewriting(last_position())
        return await heartbeating(
            self._remove_label(task, rewriting), details=rewriting.progress, position=rewriting.position
        )

    async def _remove_label(self, task: ShootTask, rewriting: Rewriting) -> TaskResult:
        view = await self._clusters.cluster(task.technical_id)
        key = (await self._secrets(task, view)).get(ENCRYPTION_KEY, Which.CURRENT).name
        shoot = await self._clusters.shoot(task.technical_id)
        await rewriting.run(shoot, _encrypted(view), f"{KEY_NAME}={key}", None)
        await self._mark(task, dict.fromkeys((KEY_POPULATED, RESOURCES_LABELED, ETCD_SNAPSHOTTED)))
        return TaskResult(note=rewriting.progress())

    async def _marks(self, task: ShootTask) -> Mapping[str, str]:
        return annotations(await self._clusters.seed.get(resources.DEPLOYMENT, _API_SERVER, task.technical_id))

    async def _mark(self, task: ShootTask, marks: Mapping[str, str | None]) -> None:
        patch = {"metadata": {"annotations": dict(marks)}}
        await self._clusters.seed.patch(resources.DEPLOYMENT, _API_SERVER, task.technical_id, patch)

    async def _secrets(self, task: ShootTask, view: ClusterView) -> SecretsManager:
        return await SecretsManager.of_shoot(self._clusters.seed, task.technical_id, view.shoot)


def _encrypted(view: ClusterView) -> tuple[str, ...]:
    """Plural names of the kinds whose objects are encrypted in etcd now, or are to be encrypted."""
    kinds = Encryption.wanted(view.shoot).resources | Encryption.at_rest(view.shoot).resources
    return ("secrets", *sorted(kinds))


async def _extensions(seed: KubeClient, namespace: str) -> list[dict[str, Any]]:
    """Extension objects that hold credentials of the shoot.

    An Infrastructure holds none, and is reconciled only on a change.
    """
    kinds = (
        resources.CONTROL_PLANE,
        resources.NETWORK,
        resources.WORKER,
        resources.EXTENSION,
    )
    found = await asyncio.gather(*(seed.list(kind, namespace) for kind in kinds))
    return [item for items in found for item in items]


def _token_secret_name(account: Mapping[str, Any], key: Handle) -> str:
    """Name of the Secret with the token of an account that is signed with this key."""
    return f"{account['name']}-token-{hashlib.sha256(key.data['id_rsa.pub']).hexdigest()[:6]}"


async def _list_secrets(
    shoot: KubeClient, account: Mapping[str, Any], secrets: list[dict[str, Any]], label: str | None
) -> None:
    """Write these Secrets and this key's label to an account. Raises Conflict if the account has changed meanwhile."""
    change = {"labels": {KEY_NAME: label}, "resourceVersion": account["resourceVersion"]}
    patch = {"metadata": change, "secrets": secrets}
    await shoot.patch(resources.SERVICE_ACCOUNT, account["name"], account["namespace"], patch)


def _certificates(text: str) -> frozenset[str]:
    return frozenset(_CERTIFICATE.findall(text))


async def _create_token_secret(shoot: KubeClient, account: Mapping[str, Any], name: str) -> None:
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": account["namespace"],
            "annotations": {_ACCOUNT_OF_TOKEN: account["name"]},
        },
        "type": _TOKEN,
    }
    try:
        await shoot.create(secret)
    except AlreadyExists:
        return
