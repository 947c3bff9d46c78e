"""Registrations of extensions in the garden of a landscape, and what the gardenlets say of them."""

import json
from base64 import b64encode
from typing import Any

from landscape.plan import SEEDS
from tests.landscape.conftest import Landscape
from tests.landscape.shoots import eventually
from tests.unit.charts import archive

GOOD = {"Valid": "True", "Installed": "True", "Healthy": "True", "Progressing": "False"}


def raw_chart(files: dict[str, str]) -> dict[str, Any]:
    """Field ``helm`` with a chart of these templates."""
    return {"rawChart": b64encode(archive(files)).decode()}


def deploy(landscape: Landscape, name: str, helm: dict[str, Any], **fields: Any) -> None:
    """Apply a ControllerDeployment."""
    kind = {"apiVersion": "core.gardener.cloud/v1", "kind": "ControllerDeployment"}
    apply(landscape, {**kind, "metadata": {"name": name}, "helm": helm, **fields})


def register(landscape: Landscape, name: str, helm: dict[str, Any], **spec: Any) -> None:
    """Apply a ControllerDeployment and its ControllerRegistration, by default for all seeds."""
    deploy(landscape, name, helm)
    deployment = {"policy": "Always", "deploymentRefs": [{"name": name}]}
    kind = {"apiVersion": "core.gardener.cloud/v1beta1", "kind": "ControllerRegistration"}
    apply(landscape, {**kind, "metadata": {"name": name}, "spec": {"deployment": deployment, **spec}})


def unregister(landscape: Landscape, *names: str, seconds: float = 60) -> None:
    """Delete ControllerRegistrations, and when their installations are gone, the ControllerDeployments."""
    if not names:
        return
    landscape.kubectl("garden", "delete", "controllerregistrations", *names, "--ignore-not-found", "--wait=false")
    eventually(lambda: not installations(landscape, *names), f"the end of the installations of {names}", seconds)
    landscape.kubectl("garden", "delete", "controllerdeployments", *names, "--ignore-not-found", "--timeout=30s")


def apply(landscape: Landscape, obj: dict[str, Any]) -> None:
    landscape.kubectl("garden", "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(obj))


def installations(landscape: Landscape, *registrations: str) -> list[dict[str, Any]]:
    """ControllerInstallations of these ControllerRegistrations."""
    found = json.loads(landscape.kubectl("garden", "get", "controllerinstallations", "-o", "json"))["items"]
    return [each for each in found if each["spec"]["registrationRef"]["name"] in registrations]


def conditions(installation: dict[str, Any], field: str = "status") -> dict[str, str]:
    return {each["type"]: each[field] for each in (installation.get("status") or {}).get("conditions") or ()}


def everywhere(landscape: Landscape, registration: str, wanted: dict[str, str]) -> bool:
    """Whether each seed has one installation of a registration, with these conditions."""
    found = installations(landscape, registration)
    seeds = sorted(each["spec"]["seedRef"]["name"] for each in found)
    return seeds == sorted(SEEDS) and all(wanted.items() <= conditions(each).items() for each in found)
