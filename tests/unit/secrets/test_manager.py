"""The secrets manager: what it makes, what it finds again, what it removes."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from activities.secrets.configs import (
    Certificate,
    CertificateAuthority,
    EtcdEncryptionKey,
    KeyAlgorithm,
    ServiceAccountKey,
    SignedBy,
    StaticToken,
    Usage,
    VPNTlsAuth,
)
from activities.secrets.manager import ForeignSecret, SecretsManager, UnknownSecret, Which
from activities.secrets.rotation import Rotation

NAMESPACE = "shoot--local--one"


def server(**changes) -> Certificate:
    return Certificate(
        **{
            "name": "kube-apiserver",
            "common_name": "kube-apiserver",
            "usage": Usage.SERVER,
            "signer": "ca",
            "dns_names": ("kube-apiserver", "kube-apiserver.shoot--local--one.svc"),
            "ip_addresses": ("100.64.0.1",),
            **changes,
        }
    )


def client(**changes) -> Certificate:
    return Certificate(**{"name": "viewer", "common_name": "viewer", "usage": Usage.CLIENT, "signer": "ca", **changes})


def rotation(phase: str, started: datetime, kind: str = "certificateAuthorities") -> Rotation:
    state = {"phase": phase, "lastInitiationTime": started.strftime("%Y-%m-%dT%H:%M:%SZ")}
    return Rotation.of_shoot({"status": {"credentials": {"rotation": {kind: state}}}})


async def load(cluster, now, rotation=None, identity="gardenlet") -> SecretsManager:
    return await SecretsManager.load(
        cluster, namespace=NAMESPACE, rotation=rotation, manager_identity=identity, now=now
    )


def certificate(data, key="tls.crt") -> x509.Certificate:
    return x509.load_pem_x509_certificate(data[key])


async def test_an_authority_that_was_never_rotated_keeps_its_plain_name(cluster, now):
    ca = await (await load(cluster, now)).generate(CertificateAuthority("ca"))

    assert ca.name == "ca"
    assert certificate(ca.data, "ca.crt").subject.rfc4514_string() == "CN=ca"
    secret = cluster.objects["Secret", NAMESPACE, "ca"]
    assert secret["immutable"] is True
    labels = secret["metadata"]["labels"]
    assert labels["managed-by"] == "secrets-manager"
    assert labels["manager-identity"] == "gardenlet"
    assert labels["persist"] == "true"
    assert labels["last-rotation-initiation-time"] == ""
    assert int(labels["issued-at-time"]) == int(now.timestamp())


async def test_the_client_authority_carries_a_hash_from_the_start(cluster, now):
    ca = await (await load(cluster, now)).generate(CertificateAuthority("ca-client", hashed_name=True))
    assert len(ca.name) == len("ca-client-") + 8


async def test_a_second_run_finds_the_secrets_of_the_first(cluster, now):
    first = await load(cluster, now)
    await first.generate(CertificateAuthority("ca"))
    made = await first.generate(server())
    writes = cluster.writes

    second = await load(cluster, now + timedelta(hours=1))
    await second.generate(CertificateAuthority("ca"))
    found = await second.generate(server())

    assert found == made
    assert cluster.writes == writes
    assert second.generated == first.generated


async def test_activities_that_create_the_same_secret_at_once_share_the_winners(cluster, now):
    """Both looked before either wrote, as parallel activities of one flow do."""
    one, other = await load(cluster, now), await load(cluster, now)
    ca_one, ca_other = await asyncio.gather(
        one.generate(CertificateAuthority("ca")), other.generate(CertificateAuthority("ca"))
    )
    assert ca_one == ca_other
    assert certificate((await one.generate(client())).data).issuer == certificate(ca_one.data, "ca.crt").subject
    assert (await other.generate(client())).data == one.get("viewer").data


async def test_a_certificate_verifies_against_its_authority(cluster, now):
    manager = await load(cluster, now)
    ca = await manager.generate(CertificateAuthority("ca"))
    made = await manager.generate(server(chain=True))
    found, *rest = x509.load_pem_x509_certificates(made.data["tls.crt"])

    found.verify_directly_issued_by(certificate(ca.data, "ca.crt"))
    assert rest == [certificate(ca.data, "ca.crt")]
    assert isinstance(found.public_key(), ec.EllipticCurvePublicKey)
    assert load_pem_private_key(made.data["tls.key"], None).public_key() == found.public_key()
    assert found.not_valid_before_utc == now - timedelta(minutes=1)
    assert found.not_valid_after_utc <= certificate(ca.data, "ca.crt").not_valid_after_utc
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["kube-apiserver", "kube-apiserver.shoot--local--one.svc"]
    usage = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]


async def test_other_names_in_a_certificate_give_another_secret_and_the_new_one_is_current(cluster, now):
    manager = await load(cluster, now)
    await manager.generate(CertificateAuthority("ca"))
    before = await manager.generate(server())
    later = await load(cluster, now + timedelta(minutes=1))
    after = await later.generate(server(dns_names=("other",)))

    assert before.name != after.name
    assert (await load(cluster, now + timedelta(minutes=2))).get("kube-apiserver") == after


def test_optional_fields_at_their_defaults_do_not_count():
    """Else a field added in a new version would re-issue every certificate of every shoot."""
    assert server().checksum() == server(renew_at_percent=0, chain=False, organizations=()).checksum()
    assert server().checksum() != server(chain=True).checksum()


async def test_an_unknown_authority_is_reported(cluster, now):
    with pytest.raises(UnknownSecret, match="ca was not generated in namespace shoot--local--one"):
        await (await load(cluster, now)).generate(server())


async def test_other_activities_find_bundle_and_current_by_the_stable_name(cluster, now):
    ca = await (await load(cluster, now)).generate(CertificateAuthority("ca"))
    other = await load(cluster, now)

    assert other.get("ca", Which.CURRENT) == ca
    assert other.get("ca").data == {"bundle.crt": ca.data["ca.crt"]}
    assert other.get("ca").name.startswith("ca-bundle-")


async def test_another_manager_in_the_namespace_is_left_alone(cluster, now):
    extension = await load(cluster, now, identity="provider-local")
    await extension.generate(CertificateAuthority("ca-provider-local"))
    ours = await load(cluster, now)

    with pytest.raises(UnknownSecret):
        ours.get("ca-provider-local")
    with pytest.raises(ForeignSecret, match="belongs to secrets manager provider-local"):
        await ours.generate(CertificateAuthority("ca-provider-local"))
    await ours.cleanup(())
    assert "ca-provider-local" in cluster.names()


class TestRotationOfAuthorities:
    """spec/credentials.md 4: 0 and 1 are the old and the new CA."""

    @pytest.fixture
    async def before(self, cluster, now):
        manager = await load(cluster, now)
        await manager.generate(CertificateAuthority("ca"))
        await manager.generate(server())
        await manager.generate(client())
        return manager

    async def test_preparing_bundles_new_before_old(self, cluster, now, before):
        manager = await load(cluster, now, rotation("Preparing", now))
        new = await manager.generate(CertificateAuthority("ca"))
        old = before.get("ca", Which.CURRENT)

        assert new.name != old.name
        assert manager.get("ca").data["bundle.crt"] == new.data["ca.crt"] + old.data["ca.crt"]
        assert {old.name, new.name, manager.get("ca").name} <= set(manager.generated)

    async def test_preparing_signs_servers_by_the_old_and_clients_by_the_new(self, cluster, now, before):
        manager = await load(cluster, now, rotation("Preparing", now))
        new = await manager.generate(CertificateAuthority("ca"))

        assert await manager.generate(server()) == before.get("kube-apiserver")
        assert certificate((await manager.generate(client())).data).issuer == certificate(new.data, "ca.crt").subject
        told = await manager.generate(server(name="metrics-server", signed_by=SignedBy.CURRENT))
        assert certificate(told.data).issuer == certificate(new.data, "ca.crt").subject

    async def test_completing_drops_the_old_authority_and_cleanup_deletes_it(self, cluster, now, before):
        manager = await load(cluster, now, rotation("Preparing", now))
        new = await manager.generate(CertificateAuthority("ca"))
        manager = await load(cluster, now, rotation("Completing", now))
        assert await manager.generate(CertificateAuthority("ca")) == new
        assert manager.get("ca").data["bundle.crt"] == new.data["ca.crt"]
        replaced = await manager.generate(server())
        assert certificate(replaced.data).issuer == certificate(new.data, "ca.crt").subject
        await manager.generate(client())
        await manager.cleanup(manager.generated)

        assert cluster.names() == set(manager.generated)
        assert "ca" not in cluster.names()

    async def test_repeated_reconciles_in_a_phase_make_nothing_new(self, cluster, now, before):
        await (await load(cluster, now, rotation("Preparing", now))).generate(CertificateAuthority("ca"))
        names = cluster.names()
        again = await load(cluster, now + timedelta(days=3), rotation("Preparing", now))
        await again.generate(CertificateAuthority("ca"))
        assert cluster.names() == names

    async def test_the_new_authority_is_not_known_before_it_was_made(self, cluster, now, before):
        """An early reader must not mount the old CA as if it were the new one."""
        with pytest.raises(UnknownSecret):
            (await load(cluster, now, rotation("Preparing", now))).get("ca", Which.CURRENT)


async def test_a_service_account_key_is_sec1_and_its_bundle_holds_public_keys_only(cluster, now):
    manager = await load(cluster, now)
    key = await manager.generate(ServiceAccountKey("service-account-key"))

    assert key.data["id_rsa"].startswith(b"-----BEGIN EC PRIVATE KEY-----")
    assert manager.get("service-account-key").data == {"bundle.key": key.data["id_rsa.pub"]}
    assert b"PRIVATE" not in key.data["id_rsa.pub"]


async def test_keys_are_rsa_if_configured(cluster, now, monkeypatch):
    monkeypatch.setattr(SecretsManager, "key_algorithm", KeyAlgorithm.RSA2048)
    key = await (await load(cluster, now)).generate(ServiceAccountKey("service-account-key"))
    assert key.data["id_rsa"].startswith(b"-----BEGIN RSA PRIVATE KEY-----")


async def test_a_certificate_is_renewed_at_80_percent_once_for_all_readers(cluster, now):
    manager = await load(cluster, now)
    await manager.generate(CertificateAuthority("ca"))
    short = client(validity=timedelta(days=100))
    first = await manager.generate(short)

    early = await load(cluster, now + timedelta(days=79))
    assert await early.generate(short) == first
    one = await (await load(cluster, now + timedelta(days=81))).generate(short)
    other = await (await load(cluster, now + timedelta(days=81, minutes=5))).generate(short)
    assert one.name != first.name
    assert other == one


async def test_authorities_are_never_renewed_by_themselves(cluster, now):
    first = await (await load(cluster, now)).generate(CertificateAuthority("ca"))
    later = await load(cluster, now + timedelta(days=3600))
    assert await later.generate(CertificateAuthority("ca")) == first


async def test_an_expired_old_authority_is_not_trusted_any_more(cluster, now):
    await (await load(cluster, now)).generate(CertificateAuthority("ca", validity=timedelta(days=1)))
    late = now + timedelta(days=2)
    manager = await load(cluster, late, rotation("Preparing", late))
    new = await manager.generate(CertificateAuthority("ca"))
    assert manager.get("ca").data["bundle.crt"] == new.data["ca.crt"]


async def test_labels_are_corrected_and_foreign_ones_removed(cluster, now):
    await (await load(cluster, now)).generate(StaticToken("kube-apiserver-static-token"))
    (name,) = cluster.names()
    labels = cluster.objects["Secret", NAMESPACE, name]["metadata"]["labels"]
    before = dict(labels)
    del labels["persist"]
    labels["stray"] = "true"

    await (await load(cluster, now)).generate(StaticToken("kube-apiserver-static-token"))
    assert cluster.objects["Secret", NAMESPACE, name]["metadata"]["labels"] == before


async def test_no_other_secret_of_the_namespace_is_read(cluster, now):
    """Some 20 activities of one reconcile load the manager, and a control plane has over 100 other Secrets."""
    await (await load(cluster, now)).generate(CertificateAuthority("ca"))
    for number in range(100):
        metadata = {"name": f"managedresource-{number}", "namespace": NAMESPACE}
        await cluster.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {}})
    cluster.listed = 0
    manager = await load(cluster, now)
    await manager.generate(CertificateAuthority("ca"))

    assert cluster.listed == 2, "the CA and its bundle"


async def test_data_offered_for_a_name_is_taken_and_an_ambiguous_offer_refused(cluster, now):
    def offer(name: str) -> dict:
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "labels": {"secrets-manager-use-data-for-name": "ca"},
            },
            "data": {"ca.crt": offered["ca.crt"], "ca.key": offered["ca.key"]},
        }

    source = await (await load(cluster, now)).generate(CertificateAuthority("ca"))
    offered = cluster.objects.pop(("Secret", NAMESPACE, "ca"))["data"]
    await cluster.create(offer("mine"))
    assert (await (await load(cluster, now)).generate(CertificateAuthority("ca"))).data == source.data

    del cluster.objects["Secret", NAMESPACE, "ca"]
    await cluster.create(offer("mine-too"))
    with pytest.raises(ForeignSecret, match="2 Secrets"):
        await (await load(cluster, now)).generate(CertificateAuthority("ca"))


async def test_shapes_of_the_other_kinds(cluster, now):
    manager = await load(cluster, now)
    token = await manager.generate(StaticToken("kube-apiserver-static-token"))
    tunnel = await manager.generate(VPNTlsAuth("vpn-seed-server-tlsauth"))
    key = await manager.generate(EtcdEncryptionKey("kube-apiserver-etcd-encryption-key"))

    password, user, uid, groups = token.data["static_tokens.csv"].decode().strip().split(",")
    assert (len(password), user, uid, groups) == (128, "health-check", "health-check", "")
    lines = tunnel.data["vpn.tlsauth"].decode().splitlines()
    assert [len(line) for line in lines[4:-1]] == [32] * 16
    assert (len(key.data["secret"]), key.data["encoding"], key.data["provider"]) == (32, b"none", b"aescbc")
    assert key.data["key"] == b"key" + str(int(now.timestamp())).encode()


async def test_no_key_material_shows_in_representations(cluster, now):
    manager = await load(cluster, now)
    ca = await manager.generate(CertificateAuthority("ca"))
    shown = repr(ca) + repr(ca.key_pair()) + repr(manager) + repr(manager.get("ca"))
    assert "PRIVATE" not in shown
    assert "CERTIFICATE" not in shown


def test_status_times_are_read_to_the_second():
    state = Rotation.of_shoot(
        {"status": {"credentials": {"rotation": {"sshKeypair": {"lastInitiationTime": "2026-01-02T03:04:05Z"}}}}}
    )
    assert state.of("ssh-keypair").initiated == int(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp())
    assert state.of("ca").initiated is None
