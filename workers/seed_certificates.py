"""Approve the certificates by which gardenlets are known to the garden. Source: spec/api-core.md 12, "CSR approval"."""

from collections.abc import Collection

from activities.kube.cache import Caches, Key
from activities.kube.client import KubeClient, Object
from activities.kube.controller import Controller
from api.constants import SEED_USER_PREFIX, SEEDS_GROUP
from api.resources import CERTIFICATE_SIGNING_REQUEST, SUBJECT_ACCESS_REVIEW
from workers.signing_requests import CLIENT_SIGNER, Request, Verdict, decide, decided, is_undecided, parse_request

_USAGES = frozenset({"digital signature", "key encipherment", "client auth"})


def is_of_seed(request: Request) -> bool:
    """Whether the certificate would make its owner a gardenlet."""
    return request.common_name.startswith(SEED_USER_PREFIX) or SEEDS_GROUP in request.organizations


def refusal(user: str, request: Request, usages: Collection[str]) -> str:
    """Why a certificate of a gardenlet is given to nobody, or not to ``user``; empty if nothing speaks against it."""
    if not request.common_name.removeprefix(SEED_USER_PREFIX) or not request.common_name.startswith(SEED_USER_PREFIX):
        return f"common name in CSR must be {SEED_USER_PREFIX}<name of the seed>"
    if request.organizations != (SEEDS_GROUP,):
        return f"organization in CSR must be {SEEDS_GROUP} alone"
    if request.dns_names or request.ip_addresses:
        return "a client certificate has no DNS names and no IP addresses"
    if "client auth" not in usages or not _USAGES.issuperset(usages):
        return f"usages must be among {', '.join(sorted(_USAGES))}, and client auth is one of them"
    if user.startswith(SEED_USER_PREFIX) and user != request.common_name:
        return "a gardenlet gets certificates for its own seed alone"
    return ""


async def run_seed_certificate_controller(client: KubeClient, caches: Caches) -> None:
    """Until cancelled."""
    requests = caches.of(CERTIFICATE_SIGNING_REQUEST)
    await requests.synced()
    controller = Controller("seed-certificates", _Approver(client).reconcile, workers=1, longest_delay=10.0)
    controller.watch(requests, when=is_undecided)
    await controller.run()


class _Approver:
    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def reconcile(self, key: Key) -> None:
        csr = await self._client.find(CERTIFICATE_SIGNING_REQUEST, key.name)
        if csr is None or decided(csr) or csr["spec"]["signerName"] != CLIENT_SIGNER:
            return
        request = parse_request(csr["spec"]["request"])
        if not is_of_seed(request):
            return
        why = refusal(csr["spec"].get("username", ""), request, csr["spec"].get("usages") or ())
        if not why and not await self._may_ask(csr):
            why = "the requester may not create certificatesigningrequests/seedclient"
        await decide(self._client, csr, Verdict(not why, why or "Approving gardenlet client certificate CSR"))

    async def _may_ask(self, csr: Object) -> bool:
        spec = csr["spec"]
        review = {
            "apiVersion": SUBJECT_ACCESS_REVIEW.api_version,
            "kind": SUBJECT_ACCESS_REVIEW.kind,
            "metadata": {},
            "spec": {
                "user": spec.get("username", ""),
                "groups": spec.get("groups") or [],
                "uid": spec.get("uid", ""),
                "extra": spec.get("extra") or {},
                "resourceAttributes": {
                    "group": CERTIFICATE_SIGNING_REQUEST.group,
                    "resource": CERTIFICATE_SIGNING_REQUEST.plural,
                    "subresource": "seedclient",
                    "verb": "create",
                },
            },
        }
        answer = await self._client.create(review)
        return bool((answer.get("status") or {}).get("allowed"))
