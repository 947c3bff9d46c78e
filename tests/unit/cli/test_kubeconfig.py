"""Each issued kubeconfig is recorded: a rotation must not cut off its user unawares."""

import json
from datetime import UTC, datetime

from cryptography import x509

from activities.secrets import crypto
from activities.secrets.crypto import KeyAlgorithm
from tests.unit.kube.api_server import ApiServer
from workers.cli.kubeconfig import client_certificate, record_kubeconfig

SHOOT = {"metadata": {"name": "demo", "namespace": "garden-local", "uid": "0f3c"}}
CONFIG_MAPS = "/api/v1/configmaps"


async def test_a_kubeconfig_is_recorded_by_its_serial_until_it_has_expired() -> None:
    ca = crypto.self_signed_ca(
        "ca-client-1", algorithm=KeyAlgorithm.P256, now=datetime.now(UTC), validity=crypto.TEN_YEARS
    )
    certificate, _ = client_certificate(ca.certificate, ca.key, 600)
    async with ApiServer().running() as server, server.client() as garden:
        await record_kubeconfig(garden, SHOOT, certificate)
        stale = json.dumps({"user": "x", "issuer": "y", "expires": "2026-01-01T00:00:00+00:00"})
        server.change(CONFIG_MAPS, "demo.issued-kubeconfigs", "garden-local", {"data": {"stale": stale}})
        another, _ = client_certificate(ca.certificate, ca.key, 600)
        await record_kubeconfig(garden, SHOOT, another)
        noted = server.find(CONFIG_MAPS, "demo.issued-kubeconfigs", "garden-local")

    assert noted is not None
    assert noted["metadata"]["ownerReferences"][0]["uid"] == "0f3c"
    serials = {f"{x509.load_pem_x509_certificate(each).serial_number:040x}" for each in (certificate, another)}
    assert set(noted["data"]) == serials
    entry = json.loads(noted["data"][min(serials)])
    assert (entry["user"], entry["issuer"]) == ("gardener.cloud:admin:gardener-cli", "ca-client-1")
    assert datetime.fromisoformat(entry["expires"]) > datetime.now(UTC)
