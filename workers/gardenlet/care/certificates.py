"""Finds client certificates of a Shoot that its approver would deny today.

The approver of earlier versions checked less: a node agent could get the organization of administrators. An issued
certificate cannot be revoked, and Kubernetes deletes its CertificateSigningRequest after an hour. So once a request was
found, the constraint stays until the Shoot's certificate authorities have been rotated.
"""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from api.decisions.conditions import Finding
from api.resources import CERTIFICATE_SIGNING_REQUEST
from kube.client import KubeClient
from kube.errors import ApiError
from workers.lib.signing_requests import CLIENT_SIGNER, NODE_AGENTS, Malformed, parse_request

Object = Mapping[str, Any]

TYPE = "NodeAgentCertificatesAcceptable"
_SHOWN = 5
_SECONDS = 10.0


async def look(client: KubeClient, status: Object) -> list[Finding]:
    """The constraint, from the requests in the cluster. Empty if these cannot be listed: the status then stays."""
    try:
        async with asyncio.timeout(_SECONDS):
            ours = f"spec.signerName={CLIENT_SIGNER}"
            outlines = await client.list(CERTIFICATE_SIGNING_REQUEST, fields=ours, keep=outline)
    except (ApiError, TimeoutError):
        return []
    return [constraint(outlines, status)]


def outline(csr: Object) -> dict[str, Any] | None:
    """Fields that are kept of a request that got a certificate and should not have; None for other requests."""
    fault = fault_of(csr)
    if not fault:
        return None
    metadata = csr["metadata"]
    return {"name": metadata["name"], "creationTimestamp": metadata["creationTimestamp"], "fault": fault}


def constraint(outlines: Iterable[Object], status: Object) -> Finding:
    """NodeAgentCertificatesAcceptable, from the outlines of wrong requests and the status of the Shoot."""
    rotated = _rotated(status)
    wrong = sorted(
        f"{each['name']} ({each['fault']})"
        for each in outlines
        if not (rotated and _time(each["creationTimestamp"]) < rotated)
    )
    if wrong:
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        text = (
            f"certificates were issued for these CertificateSigningRequests: {', '.join(wrong[:_SHOWN])}{more}; a node "
            "may hold the rights of another user: replace the machine, and rotate the certificate authorities "
            "(gardener.cloud/operation=rotate-ca-start, then rotate-ca-complete)"
        )
        return Finding(TYPE, "False", "ForeignCertificateIssued", text)
    for known in status.get("constraints") or ():
        if known["type"] != TYPE or known["status"] == "True":
            continue
        if not (rotated and _time(known["lastUpdateTime"]) < rotated):
            return Finding(TYPE, "False", known["reason"], known["message"])
    return Finding(TYPE, "True", "NoForeignCertificateIssued", "No certificate for a wrong request of a node was seen.")


def fault_of(csr: Object) -> str:
    """Fault of a request that concerns node agents and for which a certificate was issued; empty for other requests."""
    spec, user = csr["spec"], csr["spec"].get("username", "")
    if not (csr.get("status") or {}).get("certificate") or spec["signerName"] != CLIENT_SIGNER:
        return ""
    try:
        request = parse_request(spec)
    except Malformed as error:
        # The approver has never approved a request that it could not parse, so a subject that cannot be read is no
        # fault.
        return str(error) if NODE_AGENTS.concerned(user, error.names or ()) else ""
    if not NODE_AGENTS.concerned(user, (request.common_name, request.organization)):
        return ""
    return NODE_AGENTS.fault(user, request)


def _rotated(status: Object) -> datetime | None:
    """Start of the last rotation of the certificate authorities, if that rotation is completed."""
    rotation = ((status.get("credentials") or {}).get("rotation") or {}).get("certificateAuthorities") or {}
    begun, done = rotation.get("lastInitiationTime"), rotation.get("lastCompletionTime")
    if not begun or not done or _time(done) < _time(begun):
        return None
    return _time(begun)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
