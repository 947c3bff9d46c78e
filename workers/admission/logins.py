"""Reviews of the files that owners write for the API server of a Shoot: logins, and the audit policy.

Admission checks a file when a Shoot names it, and when it changes while a Shoot names it.

A fault that got past admission would stop the next start of the Shoot's API server, or would have no effect that an
owner sees. Source: spec/api-core.md 10.1.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import Any

from api import resources
from api.core.v1beta1.shoot import Shoot
from api.decisions.versions import Version, is_version
from api.defaulting.shoot import workerless
from api.resources import Object, Resource
from api.validation import kubeconfigs, logins
from api.validation.audit import POLICY_KEY, check_policy
from api.validation.expressions import check_authentication_expressions, check_authorization_expressions
from api.validation.field import Faults, Path
from api.validation.plants import parse_plant_kubeconfig
from workers.admission.indexes import PLANTS_BY_SECRET, SHOOTS_BY_REFERENCE, place
from workers.admission.review import Garden, Refusal, Review, refuse_invalid

_FIELD = Path("spec") / "kubernetes" / "kubeAPIServer"


async def check_shoot(review: Review, shoot: Shoot, old: Shoot | None, garden: Garden) -> None:
    """Refuse a Shoot whose ConfigMaps and Secrets have faults. Objects that do not exist are reported elsewhere."""
    if old is not None and _concern(shoot) == _concern(old):
        return
    refuse_invalid(review, logins.check_fields(shoot))
    faults = Faults()
    for use in _uses(shoot.to_wire()):
        found = await garden.find(use.resource, use.name, review.namespace)
        if found is not None and (wrong := use.faults(found)):
            faults.invalid(use.path, use.name, f"{use.resource.kind} {review.namespace}/{use.name}: {wrong}")
    refuse_invalid(review, faults)


def _concern(shoot: Shoot) -> Any:
    """Fields of a Shoot that the checks of its files read."""
    kubernetes = shoot.to_wire()["spec"]["kubernetes"]
    named = [each.to_wire() for each in shoot.spec.resources or []]
    return kubernetes.get("kubeAPIServer"), kubernetes.get("version"), workerless(shoot), named


async def validate_reference(review: Review, garden: Garden) -> list[str]:
    """A ConfigMap or Secret of a project keeps what the Shoots that name it need; a kubeconfig runs no program."""
    resource = resources.SECRET if review.plural == "secrets" else resources.CONFIG_MAP
    if review.object is None or review.deleting or _data(review.object) == _data(review.old or {}):
        return []
    for shoot in await garden.by_index(SHOOTS_BY_REFERENCE, place(review.namespace, review.name, resource)):
        name = f"{shoot['metadata']['namespace']}/{shoot['metadata']['name']}"
        for use in _uses(shoot):
            if (use.resource, use.name) == (resource, review.name) and (wrong := use.faults(review.object)):
                raise Refusal(
                    422,
                    "Invalid",
                    f'{review.kind} "{review.name}" is invalid: {wrong}: Shoot {name} names it in {use.path}',
                )
    if resource == resources.SECRET:
        for plant in await garden.by_index(PLANTS_BY_SECRET, place(review.namespace, review.name, resource)):
            _, faults = parse_plant_kubeconfig(text_of(review.object, kubeconfigs.KUBECONFIG_KEY))
            if faults:
                message = f"data[{kubeconfigs.KUBECONFIG_KEY}]: {faults}: Plant {plant['metadata']['name']} names it"
                raise Refusal(422, "Invalid", f'{review.kind} "{review.name}" is invalid: {message}')
    if resource == resources.SECRET and kubeconfigs.KUBECONFIG_KEY in (review.object.get("data") or {}):
        faults = kubeconfigs.check_kubeconfig(text_of(review.object, kubeconfigs.KUBECONFIG_KEY))
        if faults:
            message = f"data[{kubeconfigs.KUBECONFIG_KEY}]: {faults}"
            raise Refusal(422, "Invalid", f'{review.kind} "{review.name}" is invalid: {message}')
    return []


class _Use:
    """One field of a Shoot that names a ConfigMap or a Secret with a file of the API server."""

    def __init__(self, path: Path, resource: Resource, name: str) -> None:
        self.path = path
        self.resource = resource
        self.name = name

    def faults(self, found: Object) -> str:
        """Faults of the object for this Shoot; empty if there are none."""
        raise NotImplementedError


class _Authentication(_Use):
    def __init__(self, shoot: Mapping[str, Any], name: str) -> None:
        super().__init__(_FIELD / "structuredAuthentication" / "configMapName", resources.CONFIG_MAP, name)
        self._shoot = shoot

    def faults(self, found: Object) -> str:
        minor = _minor(self._shoot)
        config, faults = logins.parse_authentication(_config(found), minor)
        if config is not None:
            faults = logins.check_authentication(
                config,
                minor=minor,
                own_issuers=_own_issuers(self._shoot),
                tunnel=bool(self._shoot["spec"]["provider"].get("workers")),
                anonymous=_server(self._shoot).get("enableAnonymousAuthentication") is not None,
            )
            faults.found += check_authentication_expressions(config, minor).found
        return _shown(logins.CONFIG_KEY, faults)


class _Authorization(_Use):
    def __init__(self, shoot: Mapping[str, Any], name: str) -> None:
        super().__init__(_FIELD / "structuredAuthorization" / "configMapName", resources.CONFIG_MAP, name)
        self._shoot = shoot

    def faults(self, found: Object) -> str:
        minor = _minor(self._shoot)
        config, faults = logins.parse_authorization(_config(found), minor)
        if config is not None:
            named = (_server(self._shoot).get("structuredAuthorization") or {}).get("kubeconfigs") or ()
            names = [each["authorizerName"] for each in named]
            faults = logins.check_authorization(config, minor=minor, kubeconfigs=names)
            faults.found += check_authorization_expressions(config, minor).found
        return _shown(logins.CONFIG_KEY, faults)


class _AuditPolicy(_Use):
    """The policy of the API server's audit log, which keeps it from starting as a faulty file of logins does."""

    def __init__(self, name: str) -> None:
        path = _FIELD / "auditConfig" / "auditPolicy" / "configMapRef" / "name"
        super().__init__(path, resources.CONFIG_MAP, name)

    def faults(self, found: Object) -> str:
        return _shown(POLICY_KEY, check_policy(str((found.get("data") or {}).get(POLICY_KEY) or "")))


class _Kubeconfig(_Use):
    def __init__(self, path: Path, name: str, *, connects: bool) -> None:
        super().__init__(path, resources.SECRET, name)
        self._connects = connects

    def faults(self, found: Object) -> str:
        _, faults = kubeconfigs.parse_kubeconfig(text_of(found, kubeconfigs.KUBECONFIG_KEY), connects=self._connects)
        return _shown(kubeconfigs.KUBECONFIG_KEY, faults)


def _uses(shoot: Mapping[str, Any]) -> Iterable[_Use]:
    server = _server(shoot)
    policy = (server.get("auditConfig") or {}).get("auditPolicy") or {}
    if name := (policy.get("configMapRef") or {}).get("name"):
        yield _AuditPolicy(name)
    if name := (server.get("structuredAuthentication") or {}).get("configMapName"):
        yield _Authentication(shoot, name)
    authorization = server.get("structuredAuthorization") or {}
    if name := authorization.get("configMapName"):
        yield _Authorization(shoot, name)
    for index, each in enumerate(authorization.get("kubeconfigs") or ()):
        path = _FIELD / "structuredAuthorization" / "kubeconfigs" @ index / "secretName"
        yield _Kubeconfig(path, each["secretName"], connects=True)
    for index, each in enumerate(server.get("admissionPlugins") or ()):
        if (name := each.get("kubeconfigSecretName")) and not each.get("disabled"):
            path = _FIELD / "admissionPlugins" @ index / "kubeconfigSecretName"
            yield _Kubeconfig(path, name, connects=logins.plugin_connects(each["name"]))


def _server(shoot: Mapping[str, Any]) -> Mapping[str, Any]:
    return shoot["spec"]["kubernetes"].get("kubeAPIServer") or {}


def _minor(shoot: Mapping[str, Any]) -> int:
    """Minor version of Kubernetes. Another rule reports a version that is none."""
    version = shoot["spec"]["kubernetes"].get("version") or ""
    return Version(version).minor if is_version(version) else 0


def _own_issuers(shoot: Mapping[str, Any]) -> set[str]:
    """Issuers of the cluster's own tokens: what its owner has chosen, and what its status advertises."""
    accounts = _server(shoot).get("serviceAccountConfig") or {}
    advertised = (shoot.get("status") or {}).get("advertisedAddresses") or ()
    found = {each["url"] for each in advertised if each["name"] in ("internal", "service-account-issuer")}
    return found | {each for each in (accounts.get("issuer"), *(accounts.get("acceptedIssuers") or ())) if each}


def _shown(key: str, faults: Faults) -> str:
    return f"data[{key}]: {faults}" if faults else ""


def _data(obj: Mapping[str, Any]) -> tuple[Any, Any]:
    return obj.get("data") or {}, obj.get("binaryData") or {}


def _config(config_map: Object) -> str:
    return str((config_map.get("data") or {}).get(logins.CONFIG_KEY) or "")


def text_of(secret: Object, key: str) -> str:
    """Text of a key of a Secret; empty if the key is missing, or holds no text."""
    try:
        return base64.b64decode((secret.get("data") or {}).get(key) or "").decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
