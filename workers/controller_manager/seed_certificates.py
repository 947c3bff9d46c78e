"""Approve client certificates of gardenlets, and deny requests for a certificate of another gardenlet.

Source: spec/api-core.md 12, "CSR approval". Not in Gardener: a bootstrap token is for one seed, and is refused while
the seed's gardenlet still holds a valid certificate.
"""

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from api.access import BOOTSTRAPPERS, bootstrap_group
from api.constants import BOOTSTRAP_TOKEN_ID, SEED_USER_PREFIX
from api.resources import CERTIFICATE_SIGNING_REQUEST, SEED
from kube.cache import Caches, Key
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller
from workers.lib.access import User, may
from workers.lib.events import emit
from workers.lib.signing_requests import (
    CLIENT_SIGNER,
    GARDENLETS,
    Malformed,
    Request,
    Verdict,
    decide,
    decided,
    is_undecided,
    parse_request,
)

_log = logging.getLogger(__name__)

_NAME = "seed-certificates"
_SEED_CLIENT = replace(CERTIFICATE_SIGNING_REQUEST, plural="certificatesigningrequests/seedclient")
_TOKEN_USER = "system:bootstrap:"


def refusal(user: str, groups: Collection[str], request: Request) -> str:
    """Reason to deny ``user`` a gardenlet's certificate that does not depend on Seeds; empty if there is none."""
    if why := GARDENLETS.fault(user, request):
        return why
    wanted = bootstrap_group(request.common_name.removeprefix(SEED_USER_PREFIX))
    if is_bootstrapper(user, groups) and wanted not in groups:
        return f"the bootstrap token is not for this seed: its auth-extra-groups must hold {wanted}"
    return ""


def is_bootstrapper(user: str, groups: Collection[str]) -> bool:
    """Whether the requester has authenticated with a bootstrap token."""
    return user.startswith(_TOKEN_USER) or BOOTSTRAPPERS in groups


def lives(seed: Mapping[str, Any] | None, now: datetime) -> bool:
    """Whether the seed's gardenlet holds a certificate that is still valid."""
    until: str | None = ((seed or {}).get("status") or {}).get("clientCertificateExpirationTimestamp")
    return until is not None and datetime.fromisoformat(until) > now


def is_awaited(user: str, seed: Mapping[str, Any]) -> bool:
    """Whether an annotation of the Seed names the token of ``user``, which may then replace a valid certificate."""
    wanted = (seed["metadata"].get("annotations") or {}).get(BOOTSTRAP_TOKEN_ID)
    return bool(wanted) and user == f"{_TOKEN_USER}{wanted}"


def foreign(csr: Mapping[str, Any]) -> tuple[str, frozenset[str]]:
    """Fault of an issued request for a gardenlet's certificate, and the seeds that request and requester name.

    The text is empty if there is no fault. It is not checked whether a bootstrap token was for the seed: tokens of
    earlier versions named no seed.
    """
    user = csr["spec"].get("username", "")
    try:
        request = parse_request(csr["spec"])
        names, why = frozenset({request.common_name, request.organization}), GARDENLETS.fault(user, request)
    except Malformed as error:
        names, why = error.names or frozenset(), str(error)
    if not GARDENLETS.concerned(user, names):
        return "", frozenset()
    users = [each for each in (user, *names) if each.startswith(SEED_USER_PREFIX)]
    return why, frozenset(each.removeprefix(SEED_USER_PREFIX) for each in users)


async def run_seed_certificate_controller(client: KubeClient, caches: Caches) -> None:
    """Run until cancelled."""
    requests = caches.of(CERTIFICATE_SIGNING_REQUEST)
    await requests.synced()
    controller = Controller(_NAME, _Approver(client).reconcile, workers=1, longest_delay=10.0)
    controller.watch(requests, when=_is_to_be_read)
    await controller.run()


def _is_issued(csr: Object) -> bool:
    return bool((csr.get("status") or {}).get("certificate"))


def _is_to_be_read(event: WatchEvent) -> bool:
    return is_undecided(event) or (event.type != "DELETED" and _is_issued(event.object))


class _Approver:
    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def reconcile(self, key: Key) -> None:
        csr = await self._client.find(CERTIFICATE_SIGNING_REQUEST, key.name)
        if csr is None or csr["spec"]["signerName"] != CLIENT_SIGNER:
            return
        if decided(csr):
            await self._report(csr)
            return
        user = csr["spec"].get("username", "")
        try:
            request = parse_request(csr["spec"])
        except Malformed as error:
            if GARDENLETS.concerned(user, error.names):
                await decide(self._client, csr, Verdict(False, str(error)))
            return
        if not GARDENLETS.concerned(user, (request.common_name, request.organization)):
            return
        why = await self._refusal(csr, user, request)
        await decide(self._client, csr, Verdict(not why, why or "Approving gardenlet client certificate CSR"))

    async def _report(self, csr: Object) -> None:
        """Report a certificate that was issued and would be denied now.

        An earlier version or an operator has approved it. After a restart the same certificate is reported again,
        which is harmless.
        """
        if not _is_issued(csr):
            return
        why, names = foreign(csr)
        if not why:
            return
        text = (
            f"CertificateSigningRequest {csr['metadata']['name']} of {csr['spec'].get('username', '')} got a client "
            f"certificate, and should not have: {why}; it is valid until it expires, or until the client CA of the "
            "garden's API server is replaced"
        )
        _log.error("%s", text)
        for name in sorted(names):
            if (seed := await self._client.find(SEED, name)) is not None:
                await emit(self._client, seed, "gardener-controller-manager", "ForeignCertificate", text, "Warning")

    async def _refusal(self, csr: Object, user: str, request: Request) -> str:
        groups = csr["spec"].get("groups") or []
        if why := refusal(user, groups, request):
            return why
        if is_bootstrapper(user, groups):
            name = request.common_name.removeprefix(SEED_USER_PREFIX)
            seed = await self._client.find(SEED, name)
            if seed is not None and lives(seed, datetime.now(UTC)) and not is_awaited(user, seed):
                return (
                    f"the gardenlet of Seed {name} has a certificate that is still valid; to replace it by this token, "
                    f"annotate the Seed with {BOOTSTRAP_TOKEN_ID}=<token-id>"
                )
        if not await self._may_ask(csr):
            return "the requester may not create certificatesigningrequests/seedclient"
        return ""

    async def _may_ask(self, csr: Object) -> bool:
        return await may(self._client, User.of(csr["spec"]), "create", _SEED_CLIENT)
