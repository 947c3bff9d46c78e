"""The table of spec/credentials.md 4: issuer and trusted authorities of each certificate, in each phase.

t0 is before a rotation, t1 from its start until it is completed, t2 after that. 0 and 1: the old and the new
authority of the respective kind.
"""

from collections.abc import Mapping
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from activities.clusters import ClusterView
from activities.components import controller_manager, etcd, scheduler
from activities.secrets.configs import (
    Certificate,
    CertificateAuthority,
    EncryptionConfiguration,
    ServiceAccountKey,
    SignedBy,
    StaticToken,
    Usage,
)
from activities.secrets.manager import SecretsManager
from activities.secrets.rotation import Rotation
from activities.seed import vpa
from activities.seed.control_plane import _apiserver_secrets, _component_certificate, _webhooks_certificate
from activities.seed.facts import ApiNames, Networks
from tests.pages import check_table
from tests.unit.secrets.conftest import MemoryCluster

NAMESPACE = "shoot--dev--a"
AUTHORITIES = (
    "ca",
    "ca-client",
    "ca-etcd",
    "ca-etcd-peer",
    "ca-front-proxy",
    "ca-kubelet",
    "ca-metrics-server",
    "ca-vpn",
)
PHASES = ("", "Preparing", "Completing")

SERVERS = {  # still by the old one while clients may know only that
    "kube-apiserver": "ca",
    "kube-controller-manager-server": "ca",
    "kube-scheduler-server": "ca",
    "etcd-server-main": "ca-etcd",
    "etcd-server-events": "ca-etcd",
    "vpn-seed-server": "ca-vpn",
}
WITH_THEIR_CLIENTS = {
    "gardener-resource-manager-server": "ca",
    "vpa-admission-controller-server": "ca",
    "metrics-server": "ca-metrics-server",
    "etcd-peer-server-main": "ca-etcd-peer",
}
CLIENTS = {
    "etcd-client": "ca-etcd",
    "kube-aggregator": "ca-front-proxy",
    "kube-apiserver-http-proxy-client": "ca-vpn",
    "vpn-shoot-client": "ca-vpn",
}
TO_KUBELETS = {"kube-apiserver-kubelet": "ca-kubelet"}
"""Kubelets trust the new authority only after their machines are replaced."""
ROWS = [
    *((name, ca, (0, 0, 1)) for name, ca in (SERVERS | TO_KUBELETS).items()),
    *((name, ca, (0, 1, 1)) for name, ca in (WITH_THEIR_CLIENTS | CLIENTS).items()),
]


class Times:
    """One control plane's secrets at t0, t1 and t2."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster()
        self.certificates: list[dict[str, bytes]] = []
        """By name, at each time."""
        self.trusted: list[dict[str, bytes]] = []

    async def pass_by(self) -> "Times":
        for phase in PHASES:
            await self._reconcile(phase)
        return self

    async def _reconcile(self, phase: str) -> None:
        shoot = _shoot(phase)
        view = ClusterView({"metadata": {"name": NAMESPACE}, "spec": {"shoot": shoot, "seed": SEED}})
        manager = await SecretsManager.load(
            self.cluster,  # type: ignore[arg-type]
            namespace=NAMESPACE,
            rotation=Rotation.of_shoot(shoot),
        )
        for name in AUTHORITIES:
            await manager.generate(CertificateAuthority(name, hashed_name=name == "ca-client"))
        await manager.generate(ServiceAccountKey("service-account-key"))
        await manager.generate(StaticToken("kube-apiserver-static-token"))
        await manager.generate(EncryptionConfiguration("kube-apiserver-etcd-encryption-configuration"))
        made = {each.name: (await manager.generate(each)).data["tls.crt"] for each in _certificates()}
        await _apiserver_secrets(manager, view, ApiNames.of(view), Networks.of(view))
        for name in ("kube-apiserver", "kube-aggregator", "kube-apiserver-kubelet", "kube-apiserver-http-proxy-client"):
            made[name] = manager.get(name).data["tls.crt"]
        self.certificates.append(made)
        self.trusted.append({name: manager.get(name).data["bundle.crt"] for name in AUTHORITIES})
        await manager.cleanup(manager.generated)

    def authority(self, ca: str, generation: int) -> str:
        """Name of an authority: the trusted one at t0, and the only one at t2."""
        (only,) = x509.load_pem_x509_certificates(self.trusted[2 if generation else 0][ca])
        return _name(only.subject)


SEED = {"spec": {"dns": {"internal": {"domain": "internal.example.org"}}}}


def _shoot(phase: str) -> dict[str, Any]:
    state = {"phase": phase, "lastInitiationTime": "2026-11-21T10:00:00Z"}
    return {
        "metadata": {"name": "a", "namespace": "garden-dev"},
        "spec": {
            "kubernetes": {"version": "1.37.1"},
            "networking": {"pods": "100.112.0.0/16", "services": "100.68.0.0/16", "nodes": "198.18.8.0/22"},
            "provider": {"type": "local", "workers": [{"name": "w"}]},
        },
        "status": {"credentials": {"rotation": {"certificateAuthorities": state} if phase else {}}},
    }


def _certificates() -> list[Certificate]:
    server: dict[str, Any] = {"usage": Usage.SERVER, "dns_names": ("x",)}
    return [
        *(_component_certificate(each, NAMESPACE) for each in (controller_manager.NAME, scheduler.NAME)),
        *(etcd.server_certificate(role, NAMESPACE) for role in etcd.ROLES),
        etcd.peer_certificate("main", NAMESPACE),
        etcd.client_certificate(),
        vpa.certificate(NAMESPACE),
        _webhooks_certificate(NAMESPACE),
        Certificate(name="vpn-seed-server", common_name="vpn-seed-server", signer="ca-vpn", **server),
        Certificate(name="vpn-shoot-client", common_name="vpn-shoot-client", signer="ca-vpn", usage=Usage.CLIENT),
        Certificate(
            name="metrics-server", common_name="metrics-server", signer="ca-metrics-server",
            signed_by=SignedBy.CURRENT, **server,
        ),
    ]  # fmt: skip


def _name(name: x509.Name) -> str:
    return str(name.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


@pytest.fixture
async def times() -> Times:
    return await Times().pass_by()


async def test_each_certificate_has_the_documented_issuer(times: Times) -> None:
    for name, ca, generations in ROWS:
        found = tuple(_issuer(made[name]) for made in times.certificates)
        assert found == tuple(times.authority(ca, each) for each in generations), name


def test_the_documents_list_the_issuer_of_each_certificate() -> None:
    rows = [
        (f"`{name}`", f"`{ca}`", *("new" if each else "old" for each in generations)) for name, ca, generations in ROWS
    ]
    check_table("credentials.md", "certificates", rows)


async def test_both_are_trusted_in_between_the_new_one_first_and_only_one_before_and_after(times: Times) -> None:
    for ca in AUTHORITIES:
        found = [
            [_name(each.subject) for each in x509.load_pem_x509_certificates(bundles[ca])] for bundles in times.trusted
        ]
        old, new = times.authority(ca, 0), times.authority(ca, 1)
        assert old != new
        assert found == [[old], [new, old], [new]]


async def test_no_certificate_is_presented_to_a_client_that_does_not_trust_its_authority(times: Times) -> None:
    """Neighbours in time meet: one side has gone on to the next phase, the other has not."""
    for before, after in ((0, 1), (1, 2)):
        for name, ca, _ in ROWS:
            for shown, known in ((before, after), (after, before)):
                if (shown, known) == (after, before) and name in (WITH_THEIR_CLIENTS | CLIENTS) and after == 1:
                    continue  # new clients come after servers that know them; those of one kind change together
                if (shown, known) == (before, after) and after == 2 and name in SERVERS | TO_KUBELETS:
                    continue  # old serving certificates are replaced before clients drop their authority
                issuer = _issuer(times.certificates[shown][name])
                trusted = x509.load_pem_x509_certificates(times.trusted[known][ca])
                assert issuer in [_name(each.subject) for each in trusted], (name, shown, known)


async def test_all_that_is_old_is_gone_at_the_end(times: Times) -> None:
    kept: Mapping[str, list[str]] = {
        ca: [
            name
            for (kind, _, name), item in times.cluster.objects.items()
            if kind == "Secret" and item["metadata"]["labels"]["name"] == ca
        ]
        for ca in AUTHORITIES
    }
    assert {len(names) for names in kept.values()} == {1}


def _issuer(certificate: bytes) -> str:
    return _name(x509.load_pem_x509_certificates(certificate)[0].issuer)
