"""Trust of the cloud in the tokens of the garden's WorkloadIdentities, by OpenID Connect."""

import json
from typing import Any

from api.decisions import workload_identity
from landscape.cluster import Credentials
from landscape.files import write_if_changed
from landscape.plan import Plan

DISCOVERY_PORT = 8445
TENANTS = "tenants"
"""Group of the tenants of the cloud, with certificates or tokens."""
_NAMESPACE = "garden-local"
"""Namespace of the garden whose WorkloadIdentities the cloud trusts."""


def audience(plan: Plan) -> str:
    """Claim ``aud`` of tokens for the cloud."""
    return f"cloud.{plan.dns_zone}"


def issuer_host(plan: Plan) -> str:
    """Host and port at which the discovery server publishes the keys of issuers."""
    return f"{plan.discovery_host}:{DISCOVERY_PORT}"


def trust(plan: Plan) -> dict[str, str]:
    """Write the AuthenticationConfiguration of the cloud's API server; returns its flag.

    The API server reads the keys of the issuer when it starts, and again for a key that it does not know. Until the
    issuer serves them, it refuses tokens, and tries again every 10 s.
    """
    url = f"https://{issuer_host(plan)}{workload_identity.PATH}"
    authority = Credentials.of(plan.garden).ca.files.certificate.read_text()
    file = plan.cloud.directory / "authentication.json"
    write_if_changed(file, json.dumps(configuration(url, audience(plan), authority), indent=2))
    return {"authentication-config": str(file)}


def configuration(url: str, audience: str, authority: str) -> dict[str, Any]:
    """AuthenticationConfiguration that accepts tokens of one issuer, for one audience, with the trusted subjects.

    ``authority``: PEM of the authority of the issuer's certificate.
    """
    subjects = f"gardener.cloud:workloadidentity:{_NAMESPACE}:"
    return {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthenticationConfiguration",
        "jwt": [
            {
                "issuer": {"url": url, "audiences": [audience], "certificateAuthority": authority},
                "claimValidationRules": [
                    {
                        "expression": f"claims.sub.startsWith('{subjects}')",
                        "message": f"the cloud trusts WorkloadIdentities of namespace {_NAMESPACE} alone",
                    }
                ],
                "claimMappings": {
                    "username": {"claim": "sub", "prefix": ""},
                    "groups": {"expression": f"['{TENANTS}']"},
                },
            }
        ],
    }
