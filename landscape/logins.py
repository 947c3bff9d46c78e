"""Logins of people to the garden: issuers of OpenID Connect tokens that the garden's API server trusts.

The API server reads the file again when it changes. Source: Kubernetes, structured authentication configuration.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from api.decisions.versions import Version
from api.validation import field, logins
from api.validation.expressions import check_authentication_expressions
from landscape.errors import LandscapeError
from landscape.files import write_if_changed
from landscape.kube import connected
from landscape.plan import Plan

_RESERVED = ("system:", "gardener.cloud:")
"""No issuer names users and groups that begin so: Kubernetes, operators, gardenlets and the garden's processes do."""
_METRIC = "apiserver_authentication_config_controller_last_config_info"


def api_server_flags(plan: Plan) -> dict[str, str]:
    """Flags of the garden's API server; writes a file without issuers if there is none yet."""
    if not _file(plan).exists():
        _write(plan, [])
    return {"authentication-config": str(_file(plan))}


def trust(plan: Plan, configuration: str) -> None:
    """Write the issuers of an AuthenticationConfiguration for the API server, in place of those of before.

    Raises LandscapeError if the API server would refuse the configuration, or read a part of it only when it starts.
    """
    minor = Version(plan.kubernetes_version).minor
    parsed, faults = logins.parse_authentication(configuration, minor)
    if parsed is not None:
        own = [f"https://{plan.garden.name}.{plan.dns_zone}"]
        faults = logins.check_authentication(
            parsed, minor=minor, own_issuers=own, tunnel=False, anonymous=False, any_host=True
        )
        faults.found += check_authentication_expressions(parsed, minor).found
        if parsed.anonymous is not None:
            faults.forbidden(field.Path("anonymous"), "the API server reads it only when it starts")
    if parsed is None or faults:
        raise LandscapeError(f"the authentication configuration of the garden: {faults}")
    _write(plan, [logins.without_users_of(each, *_RESERVED) for each in logins.wire(parsed).get("jwt") or ()])


async def are_trusted(plan: Plan) -> bool:
    """Whether the API server uses the file as it is now."""
    digest = hashlib.sha256(_file(plan).read_bytes()).hexdigest()
    async with connected(plan.kubeconfig(plan.garden.name)) as client:
        metrics = str(await client.request("GET", "/metrics"))
    return any(line.startswith(_METRIC) and digest in line for line in metrics.splitlines())


def _file(plan: Plan) -> Path:
    return plan.garden.directory / "authentication.json"


def _write(plan: Plan, issuers: list[dict[str, Any]]) -> None:
    content = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration", "jwt": issuers}
    write_if_changed(_file(plan), json.dumps(content, indent=2))
