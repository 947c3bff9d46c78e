"""Validation of Bastions, by themselves and against their Shoot. Source: spec/api-core.md 9, 11."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Any

from api.bastions.v1alpha1.bastion import Bastion, IPBlock
from api.constants import CREATED_BY
from api.decisions import ssh
from api.decisions.registrations import responsible
from api.validation.field import Faults, Path

SPEC = Path("spec")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_MAX_LABEL = 63
_NOT_SHOWN = "not shown: it might be a private key"


def check_bastion(bastion: Bastion) -> Faults:
    faults = Faults()
    name, spec = bastion.metadata.name, bastion.spec
    if len(name) > _MAX_LABEL or not _LABEL.fullmatch(name):
        faults.invalid(Path("metadata") / "name", name, f"must be a DNS label of at most {_MAX_LABEL} characters")
    if fault := ssh.key_fault(spec.ssh_public_key):
        faults.invalid(SPEC / "sshPublicKey", _NOT_SHOWN, fault)
    for index, each in enumerate(spec.ingress):
        _check_block(each.ip_block, SPEC / "ingress" @ index / "ipBlock", faults)
    return faults


def _check_block(block: IPBlock, path: Path, faults: Faults) -> None:
    try:
        network = ipaddress.ip_network(block.cidr, strict=False)
    except ValueError as error:
        faults.invalid(path / "cidr", block.cidr, str(error))
        return
    for index, each in enumerate(block.except_ or ()):
        try:
            within = ipaddress.ip_network(each, strict=False)
        except ValueError as error:
            faults.invalid(path / "except" @ index, each, str(error))
            continue
        if within.version != network.version or not network.supernet_of(within):  # type: ignore[arg-type]
            faults.invalid(path / "except" @ index, each, f"must be within {block.cidr}")


def check_bastion_creator(bastion: Bastion, old: Bastion, user: str) -> Faults:
    """Faults of a change of the sources by another user than the creator. Source: GEP-15.

    The creator holds the key of the bastion, and answers for the addresses that it is open to.
    """
    faults = Faults()
    creator = old.metadata.annotations.get(CREATED_BY)
    if bastion.spec.ingress != old.spec.ingress and creator != user:
        faults.forbidden(SPEC / "ingress", f"only its creator {creator} may change it: create a Bastion of your own")
    return faults


def check_bastion_change(bastion: Bastion, old: Bastion) -> Faults:
    """Faults of a change that the schema's rules do not cover: the name of the creator is immutable."""
    faults = Faults()
    before, now = (each.metadata.annotations.get(CREATED_BY) for each in (old, bastion))
    faults.fixed(Path("metadata") / "annotations" @ CREATED_BY, before, now)
    return faults


def check_bastion_shoot(bastion: Bastion, shoot: Mapping[str, Any] | None) -> Faults:
    """Faults of a Bastion whose Shoot has no nodes that can be reached by SSH."""
    faults = Faults()
    name = bastion.spec.shoot_ref.name
    path = SPEC / "shootRef" / "name"
    if shoot is None:
        faults.invalid(path, name, f"shoot {bastion.metadata.namespace}/{name} not found")
    elif "deletionTimestamp" in shoot["metadata"]:
        faults.invalid(path, name, "shoot is in deletion")
    elif not shoot["spec"].get("seedName"):
        faults.invalid(path, name, "shoot is not yet assigned to a seed")
    elif not ssh.has_access(shoot):
        faults.invalid(path, name, "ssh access is disabled for worker nodes")
    return faults


def check_bastion_provider(bastion: Bastion, registrations: Iterable[Mapping[str, Any]]) -> Faults:
    """Faults of a Bastion whose provider type has no extension."""
    faults = Faults()
    offered = sorted(type_ for kind, type_ in responsible(registrations) if kind == "Bastion")
    type_ = bastion.spec.provider_type
    if type_ not in offered:
        detail = f"no extension is registered for Bastion; registered: {offered}"
        faults.unsupported(SPEC / "providerType", type_, offered, detail)
    return faults
