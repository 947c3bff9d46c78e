"""State of garden, cluster and seed after a failed test, as files without credentials.

Three measures keep credentials out:

- Objects of kind Secret have the length of each value only.
- In all other texts (logs, environment variables, annotations, messages), each value of a Secret that this user can
  read is replaced, as text and in base64; of values with several words, such as a kubeconfig, each long word is. Values
  shorter than ``_SHORTEST`` are left, since words such as ``true`` are values, too. A cluster whose Secrets cannot be
  read has no logs in the dump.
- In all texts, what looks like a credential is replaced, whether or not a Secret has it: private keys, JSON web tokens,
  and values whose name ends like ``password`` or ``token``.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from api import resources
from api.resources import Resource
from kube.client import KubeClient, Object
from kube.errors import ApiError
from workers.cli.garden_tests.context import is_ready

REDACTED = "(redacted)"
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""Annotation of kubectl: the whole object, of a Secret with its values."""
_SHORTEST = 8
"""Characters of a value that is replaced wherever it is found."""
_LONG_WORD = 20
"""Characters of a word in a value of several words that is replaced."""
_PUBLIC_KEYS = frozenset({"namespace", "ca.crt", "bundle.crt", "service-account.pub"})
"""Keys of Secrets whose values are known to every user of the cluster."""
_TAIL_LINES = 200
_WORDS = re.compile(r"[^\s\"',]+")
_SECRET_NAME = r"(?:passw(?:or)?d|passphrase|token|secret|credentials?|(?:private|api|access)[-_.]?key|key-data)"
"""End of a name whose value is a credential: of an environment variable, an annotation, a field or an option."""
_NAMED_SECRET = re.compile(rf".*{_SECRET_NAME}", re.IGNORECASE | re.DOTALL)
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_JSON_WEB_TOKEN = re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*")
_ASSIGNED = re.compile(
    rf"({_SECRET_NAME}[\\\"']*\s*[:=]\s*[\\\"']*|\b(?:bearer|basic)\s+(?=\S{{16}}))(?!\(redacted)[^\s\\\"',;&]+",
    re.IGNORECASE,
)
_USER_OF_URL = re.compile(r"(\w://[^\s/:@]*:)[^\s/@]+@")
_BASE64 = re.compile(r"[A-Za-z0-9+/]{40,}={0,2}")

_GARDEN = (
    resources.SHOOT,
    resources.CREDENTIALS_BINDING,
    resources.SECRET_BINDING,
    resources.CORE_BACKUP_ENTRY,
    resources.OPERATIONS_BASTION,
    resources.SECRET,
    resources.CONFIG_MAP,
    resources.EVENT,
)
_CLUSTER = (
    resources.NODE,
    resources.NAMESPACE,
    resources.POD,
    resources.DEPLOYMENT,
    resources.DAEMON_SET,
    resources.STATEFUL_SET,
    resources.SERVICE,
    resources.PERSISTENT_VOLUME_CLAIM,
    resources.NETWORK_POLICY,
    resources.SECRET,
    resources.EVENT,
)
_SEED = (
    resources.POD,
    resources.DEPLOYMENT,
    resources.STATEFUL_SET,
    resources.SERVICE,
    resources.PERSISTENT_VOLUME_CLAIM,
    resources.NETWORK_POLICY,
    resources.INFRASTRUCTURE,
    resources.CONTROL_PLANE,
    resources.NETWORK,
    resources.WORKER,
    resources.DNS_RECORD,
    resources.EXTENSION,
    resources.MANAGED_RESOURCE,
    resources.ETCD,
    resources.MACHINE,
    resources.MACHINE_SET,
    resources.MACHINE_DEPLOYMENT,
    resources.SECRET,
    resources.EVENT,
)


@dataclass
class Scrubber:
    """Replaces values of Secrets, and what looks like a credential, in texts."""

    _values: set[str] = field(default_factory=set)
    _pattern: re.Pattern[str] | None = None

    def learn(self, secret: Object) -> None:
        """Remember the values of a Secret."""
        for key, encoded in (secret.get("data") or {}).items():
            if key in _PUBLIC_KEYS:
                continue
            try:
                value = base64.b64decode(encoded, validate=True)
            except (binascii.Error, ValueError):
                continue
            self._add(str(encoded))
            self._add(base64.b64encode(value).decode().rstrip("="))
            text = value.decode(errors="ignore").strip()
            self._add(text)
            words = _WORDS.findall(text)
            if len(words) > 1:
                for word in words:
                    if len(word) >= _LONG_WORD:
                        self._add(word)
        self._pattern = None

    def text(self, text: str) -> str:
        """The text without any known value, and without what looks like a credential."""
        if self._pattern is None:
            # The longest ones first: a value may be part of another one.
            ordered = sorted(self._values, key=lambda each: (-len(each), each))
            self._pattern = re.compile("|".join(map(re.escape, ordered)) or r"(?!)")
        return _BASE64.sub(_without_credentials, _without_shapes(self._pattern.sub(REDACTED, text)))

    def of(self, value: Any) -> Any:
        """The same for each text in a JSON value."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            variable = str(value.get("name", "")) if "value" in value else ""  # an environment variable, for example
            return {
                self.text(key): REDACTED if _is_secret(key, variable, each) else self.of(each)
                for key, each in value.items()
            }
        if isinstance(value, list):
            return [self.of(each) for each in value]
        return value

    def _add(self, value: str) -> None:
        if len(value) >= _SHORTEST:
            self._values.add(value)


def _is_secret(key: str, variable: str, value: object) -> bool:
    """Whether a field of an object, or the environment variable of this name, is a credential by its name."""
    if not isinstance(value, str) or not value:
        return False
    return bool(_NAMED_SECRET.fullmatch(variable if key == "value" and variable else key))


def _without_shapes(text: str) -> str:
    for shape in (_PRIVATE_KEY, _JSON_WEB_TOKEN):
        text = shape.sub(REDACTED, text)
    return _USER_OF_URL.sub(rf"\1{REDACTED}@", _ASSIGNED.sub(rf"\1{REDACTED}", text))


def _without_credentials(encoded: re.Match[str]) -> str:
    """A word in base64; replaced if what it encodes, such as a kubeconfig, has a credential."""
    try:
        text = base64.b64decode(encoded[0], validate=True).decode()
    except ValueError:
        return encoded[0]
    return REDACTED if _without_shapes(text) != text else encoded[0]


def without_bookkeeping(obj: Object) -> Object:
    """An object without what clients note about their own writes."""
    shown = {**obj, "metadata": {key: each for key, each in obj["metadata"].items() if key != "managedFields"}}
    if annotations := shown["metadata"].get("annotations"):
        shown["metadata"]["annotations"] = {key: each for key, each in annotations.items() if key != _LAST_APPLIED}
    return shown


def redacted(secret: Object) -> Object:
    """A Secret with the length of each value in place of the value."""
    shown = without_bookkeeping(secret)
    shown["data"] = {key: f"{REDACTED} {len(value)} characters" for key, value in (secret.get("data") or {}).items()}
    shown.pop("stringData", None)
    return shown


class Dump:
    """Files of one failed test, in a directory that only this user can read."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._scrubber = Scrubber()
        self._read: list[tuple[str, Resource, Sequence[Object]]] = []
        self._logs: list[tuple[str, str]] = []
        self.faults: list[str] = []

    async def read_garden(self, client: KubeClient, namespace: str) -> None:
        await self._objects("garden", client, _GARDEN, namespace)

    async def read_cluster(self, client: KubeClient) -> None:
        """Objects of all namespaces, and the ends of the logs of pods that are not ready, or in test namespaces."""
        await self._objects("cluster", client, _CLUSTER, None)
        await self._pod_logs("cluster", client, only_noticeable=True)

    async def read_seed(self, client: KubeClient, namespace: str) -> None:
        """Control plane of the Shoot."""
        await self._objects("seed", client, _SEED, namespace)
        await self._pod_logs("seed", client, only_noticeable=False)

    def fault(self, what: str, error: Exception) -> None:
        """Note what could not be read."""
        self.faults.append(f"{what}: {error}")

    def write(self) -> None:
        """Write all that was read. All Secrets are known by now, so no file has a value of one read later."""
        self.directory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.directory.mkdir(mode=0o700)
        for cluster, resource, objects in self._read:
            shown = [
                self._scrubber.of(redacted(each) if resource == resources.SECRET else without_bookkeeping(each))
                for each in objects
            ]
            self._file(f"{cluster}/{resource.plural}.json", json.dumps(shown, indent=2))
        for name, text in self._logs:
            self._file(name, self._scrubber.text(text))
        if self.faults:
            self._file("unreadable.txt", self._scrubber.text("\n".join(self.faults) + "\n"))

    async def _objects(
        self, cluster: str, client: KubeClient, kinds: Iterable[Resource], namespace: str | None
    ) -> None:
        for resource in kinds:
            try:
                found = await client.list(resource, namespace if resource.namespaced else None)
            except ApiError as error:
                self.fault(f"{cluster}: {resource.plural}", error)
                continue
            if resource == resources.SECRET:
                for each in found:
                    self._scrubber.learn(each)
            self._read.append((cluster, resource, found))

    async def _pod_logs(self, cluster: str, client: KubeClient, *, only_noticeable: bool) -> None:
        read = {kind: found for name, kind, found in self._read if name == cluster}
        if resources.SECRET not in read:
            self.faults.append(f"{cluster}: logs are left out: they may have values of Secrets, which are not known")
            return
        for pod in read.get(resources.POD, ()):
            namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
            if only_noticeable and is_ready(pod) and not namespace.startswith("gardener-test-"):
                continue
            for container in pod["spec"]["containers"]:
                query = {"container": container["name"], "tailLines": str(_TAIL_LINES)}
                file = f"{cluster}/logs/{namespace}_{name}_{container['name']}.log"
                try:
                    log = await client.request("GET", resources.POD.path(namespace, name, "log"), query=query)
                except ApiError as error:
                    self.fault(file, error)
                else:
                    self._logs.append((file, log if isinstance(log, str) else json.dumps(log)))

    def _file(self, name: str, text: str) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
