"""Clients that use old credentials, found in the objects of clusters: pure functions, one for each kind of client.

Source of the list: spec/credentials.md 4, column t1.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import yaml

from api import constants
from api.contracts.kubeconfigs import SHOWN_DIGITS, IssuedKubeconfig
from api.contracts.rotation import User

KEY_NAME = "credentials.gardener.cloud/key-name"
"""Label or annotation of objects that were created or rewritten with a key; its value is the name of its Secret."""

Object = Mapping[str, Any]
_PURPOSES = {
    "kubelet-client": ("client", "certificate by which its kubelet is known to the API server"),
    "node-agent": ("client", "certificate by which its node agent is known to the API server"),
    "kubelet-serving": ("serving", "certificate that its kubelet shows to the API server"),
}


def nodes(found: Iterable[Object], issuers: Mapping[str, str]) -> Iterator[User]:
    """Nodes with a certificate of another CA than the current CA for this kind of certificate."""
    for node in found:
        metadata = node["metadata"]
        if metadata.get("deletionTimestamp"):
            continue
        who = f"node {metadata['name']}"
        told = json.loads(annotations(node).get(constants.CERTIFICATE_ISSUERS) or "{}")
        if not told:
            yield User(
                who=who, why="does not tell its certificates", remedy="look at gardener-node-agent.service on it"
            )
            continue
        old = [text for name, (kind, text) in _PURPOSES.items() if told.get(name) not in (None, issuers.get(kind))]
        if old:
            yield User(
                who=who,
                why=f"has an old {' and an old '.join(old)}",
                remedy="delete its Machine, or have its worker pool rolled",
            )


def namespaces(config_maps: Iterable[Object], bundle: str) -> Iterator[User]:
    """Namespaces that do not publish the new CA bundle to their pods."""
    for each in config_maps:
        if (each.get("data") or {}).get("ca.crt") != bundle and "deletionTimestamp" not in each["metadata"]:
            yield User(
                who=f"namespace {each['metadata']['namespace']}",
                why="publishes another CA to its pods",
                remedy=f"delete its ConfigMap {each['metadata']['name']}, it is made anew",
            )


def kubeconfigs_of_ours(secrets: Iterable[Object], bundle: str) -> Iterator[User]:
    """Our own kubeconfigs for the shoot that would not trust its API server."""
    for secret in secrets:
        encoded = (secret.get("data") or {}).get("kubeconfig")
        if not encoded:
            continue
        for cluster in (yaml.safe_load(base64.b64decode(encoded)) or {}).get("clusters") or ():
            trusted = base64.b64decode(cluster["cluster"].get("certificate-authority-data") or "").decode()
            if trusted != bundle:
                name = secret["metadata"]["name"]
                yield User(who=f"access {name}", why="trusts another CA", remedy="reconcile the Shoot")
                break


def extensions(found: Iterable[Object], since: str) -> Iterator[User]:
    """Extension objects that were not reconciled since the start of the rotation."""
    begun = datetime.fromisoformat(since)
    for each in found:
        metadata = each["metadata"]
        asked = annotations(each).get(constants.TIMESTAMP)
        last = (each.get("status") or {}).get("lastOperation") or {}
        if asked and datetime.fromisoformat(asked) >= begun and last.get("state") == "Succeeded":
            continue
        yield User(
            who=f"{each['kind']} {metadata['name']}",
            why="was not reconciled since the start",
            remedy="reconcile the Shoot, and look at its extension",
        )


def issued_kubeconfigs(recorded: Mapping[str, IssuedKubeconfig], issuer: str, now: datetime) -> Iterator[User]:
    """Kubeconfigs that the garden issued and whose certificates the API server will not accept any more."""
    for serial, each in recorded.items():
        if each.issuer != issuer and not each.discarded and not each.expired(now):
            yield User(
                who=f"kubeconfig {serial[:SHOWN_DIGITS]} of {each.user}",
                why=f"is valid until {each.expires}",
                remedy="have them take a new one, wait until it has expired, or, if nobody has it any more, discard it",
            )


def tokens_of_ours(secrets: Iterable[Object], key: str) -> Iterator[User]:
    """Tokens of the control plane that were not renewed with the new key."""
    for secret in secrets:
        if annotations(secret).get(KEY_NAME) != key:
            name = secret["metadata"]["name"]
            yield User(who=f"access {name}", why="has a token of the old key", remedy="reconcile the Shoot")


def static_tokens(secrets: Iterable[Object], accounts: Iterable[Object], key_id: str) -> Iterator[User]:
    """Token Secrets of the old key that the rotation does not replace: those that are in no account's list."""
    replaced = {
        (each["metadata"]["namespace"], listed["name"]) for each in accounts for listed in each.get("secrets") or ()
    }
    for secret in secrets:
        metadata = secret["metadata"]
        token = base64.b64decode((secret.get("data") or {}).get("token") or "").decode()
        if not token or (metadata["namespace"], metadata["name"]) in replaced:
            continue
        if _key_of(token) != key_id:
            yield User(
                who=f"Secret {metadata['namespace']}/{metadata['name']}",
                why="holds a token of the old key",
                remedy="delete it, and make another one if somebody needs it",
            )


def _key_of(token: str) -> str:
    """Key id in the header of a token. The token is not verified; its key id is only compared."""
    header = token.split(".")[0]
    padded = header + "=" * (-len(header) % 4)
    return str(json.loads(base64.urlsafe_b64decode(padded)).get("kid", ""))


def annotations(item: Object) -> Mapping[str, str]:
    """Annotations of an object; empty if it has none."""
    found: Mapping[str, str] = item["metadata"].get("annotations") or {}
    return found
