"""A process of a seed is taken over: its pod and its certificates give the attacker little."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509

from activities.components import gateway
from activities.secrets import crypto
from api.labels import pod_security

_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"


def _pod() -> dict[str, Any]:
    (found,) = (
        each for each in gateway.objects(internal_domain="internal.example.org") if each["kind"] == "Deployment"
    )
    return dict(found["spec"]["template"]["spec"])


@pytest.mark.attack(actor="T6", asset="A2", finding=20)
def test_the_envoy_that_faces_the_internet_has_no_token_of_the_seed() -> None:
    """The token reads all ConfigMaps and Services of the seed; only the container that configures Envoy needs it."""
    pod = _pod()

    with_token = [
        container["name"]
        for container in [*pod["containers"], *pod["initContainers"]]
        if any(mount["mountPath"] == _TOKEN for mount in container["volumeMounts"])
    ]

    assert pod["automountServiceAccountToken"] is False
    assert with_token == ["gateway"]


@pytest.mark.attack(actor="T6", asset="A2", finding=8)
def test_the_gateways_namespace_admits_restricted_pods_alone() -> None:
    (namespace,) = (
        each for each in gateway.objects(internal_domain="internal.example.org") if each["kind"] == "Namespace"
    )

    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert pod_security("restricted").items() <= namespace["metadata"]["labels"].items()


@pytest.mark.attack(actor="T1", asset="A3", finding=20)
def test_an_authority_signs_leaves_and_no_other_authority() -> None:
    """A certificate that an authority signed by mistake as an authority is not one."""
    now = datetime.now(UTC)
    ca = crypto.self_signed_ca("ca", algorithm=crypto.KeyAlgorithm.P256, now=now, validity=timedelta(days=1))
    extensions = x509.load_pem_x509_certificate(ca.certificate).extensions

    assert extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    assert not extensions.get_extension_for_class(x509.KeyUsage).value.key_encipherment
