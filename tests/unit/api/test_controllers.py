"""Registrations, charts and installations that contradict themselves are refused with what to do."""

import base64
import gzip
import io
import tarfile
from typing import Any

import pytest

from api.core.v1beta1.controller_installation import ControllerInstallation
from api.core.v1beta1.controller_registration import ControllerRegistration
from api.crds import kinds
from api.validation.charts import chart_fault
from api.validation.controllers import (
    KINDS,
    check_controller_deployment,
    check_controller_installation,
    check_controller_registration,
)
from tests.unit.api.shoots import changed
from tests.unit.charts import archive

REGISTRATION: dict[str, Any] = {
    "metadata": {"name": "ext"},
    "spec": {
        "resources": [
            {
                "kind": "Extension",
                "type": "ext",
                "reconcileTimeout": "5m",
                "lifecycle": {"reconcile": "AfterWorker", "delete": "AfterKubeAPIServer"},
                "autoEnable": ["shoot", "seed"],
                "clusterCompatibility": ["shoot", "seed"],
                "workerlessSupported": True,
            },
            {"kind": "SelfHostedShootExposure", "type": "ext", "continuousEndpointUpdate": False},
            {"kind": "Network", "type": "ext", "primary": False},
        ],
        "deployment": {"policy": "OnDemand", "deploymentRefs": [{"name": "chart"}]},
    },
}
FIRST, NETWORK = "spec.resources.0", {"kind": "Network", "type": "ext"}


def faults(registration: dict[str, Any]) -> str:
    return str(check_controller_registration(ControllerRegistration.of(registration)))


def of(resource: dict[str, Any], **deployment: Any) -> dict[str, Any]:
    return {"metadata": {"name": "ext"}, "spec": {"resources": [resource], "deployment": deployment}}


def test_a_complete_registration_is_accepted() -> None:
    assert faults(REGISTRATION) == "[]"
    selected = {"matchExpressions": [{"key": "region", "operator": "In", "values": ["north"]}]}
    assert faults(of(NETWORK | {"primary": False}, seedSelector=selected)) == "[]"


EXTENSION = {"kind": "Extension", "type": "ext"}


@pytest.mark.parametrize(
    ("registration", "message"),
    [
        (of({"kind": "Cloud", "type": "a"}), 'spec.resources[0].kind: Unsupported value: "Cloud"'),
        (of({"kind": "Network", "type": ""}), "spec.resources[0].type: Required value"),
        (of(NETWORK | {"reconcileTimeout": "5m"}), "reconcileTimeout: Forbidden: is for kind Extension only"),
        (of(NETWORK | {"lifecycle": {}}), "lifecycle: Forbidden: is for kind Extension only, not for Network"),
        (of(NETWORK | {"autoEnable": ["shoot"]}), "autoEnable: Forbidden: is for kind Extension only"),
        (of(NETWORK | {"clusterCompatibility": ["shoot"]}), "clusterCompatibility: Forbidden: is for kind Extension"),
        (of(NETWORK | {"workerlessSupported": True}), "workerlessSupported: Forbidden: is for kind Extension only"),
        (of(EXTENSION | {"primary": False, "autoEnable": ["shoot"]}), "autoEnable: Forbidden: is for the primary"),
        (of(EXTENSION | {"continuousEndpointUpdate": True}), "continuousEndpointUpdate: Forbidden: is for kind Self"),
        (of(EXTENSION | {"reconcileTimeout": "0s"}), "reconcileTimeout: Invalid value"),
        (of(EXTENSION | {"lifecycle": {"delete": "AfterWorker"}}), "lifecycle.delete: Unsupported value"),
        (of(EXTENSION | {"lifecycle": {"migrate": "AfterWorker"}}), "lifecycle.migrate: Unsupported value"),
        (of(EXTENSION | {"autoEnable": ["seed"]}), "autoEnable[0]: Forbidden: clusterCompatibility does not hold seed"),
        (of(EXTENSION | {"autoEnable": ["shoot", "shoot"]}), "autoEnable[1]: Duplicate value"),
        (of(NETWORK, seedSelector={}), "spec.deployment.seedSelector: Forbidden: excludes a primary resource"),
        (
            of(NETWORK | {"primary": False}, seedSelector={"matchExpressions": [{"key": "a", "operator": "Is"}]}),
            "seedSelector.matchExpressions[0].operator: Unsupported value",
        ),
        (of(NETWORK, deploymentRefs=[{"name": ""}]), "deploymentRefs[0].name: Required value"),
        (changed(REGISTRATION, "metadata.name", "n" * 48), "metadata.name: Invalid value"),
        (changed(REGISTRATION, "metadata.name", "ext.one"), "at most 47 letters, digits and hyphens"),
        (
            changed(REGISTRATION, "metadata.annotations", {"security.gardener.cloud/pod-security-enforce": "none"}),
            'pod-security-enforce]: Unsupported value: "none"',
        ),
    ],
)
def test_a_registration_that_contradicts_itself_is_refused(registration: Any, message: str) -> None:
    assert message in faults(registration)


def test_two_equal_resources_are_refused() -> None:
    twice = {"metadata": {"name": "ext"}, "spec": {"resources": [NETWORK, NETWORK]}}
    assert "spec.resources[1]: Duplicate value" in faults(twice)


def test_every_kind_of_extension_object_can_be_registered() -> None:
    served = {each.__name__ for each in kinds("seed") if each.definition.group == "extensions.gardener.cloud"}
    assert served - {"Cluster"} <= set(KINDS)


INSTALLATION: dict[str, Any] = {
    "metadata": {"name": "ext-1"},
    "spec": {"registrationRef": {"name": "ext"}, "seedRef": {"name": "seed-1"}, "deploymentRef": {"name": "chart"}},
}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("spec.registrationRef.name", "other", 'spec.registrationRef.name: Invalid value: "other": field is immutable'),
        ("spec.seedRef.name", "other", 'spec.seedRef.name: Invalid value: "other": field is immutable'),
        ("spec.seedRef", None, "spec.seedRef.name: Required value"),
        ("spec.shootRef", {"name": "a", "namespace": "b"}, "spec.shootRef: Forbidden: is for self-hosted Shoots"),
        ("spec.deploymentRef", {}, "spec.deploymentRef.name: Required value"),
        ("spec.deploymentRef.name", "newer", "[]"),
        ("spec.seedRef.resourceVersion", "9", "[]"),
    ],
)
def test_an_installation_stays_the_one_of_its_registration_and_seed(field: str, value: Any, message: str) -> None:
    new, old = ControllerInstallation.of(changed(INSTALLATION, field, value)), ControllerInstallation.of(INSTALLATION)
    assert message in str(check_controller_installation(new, old))


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def tar(*members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as made:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


GOOD = b"{apiVersion: v2, name: notes, version: 1.0.0}"


@pytest.mark.parametrize(
    ("chart", "why"),
    [
        (encoded(archive({"templates/a.yaml": "a: b"})), ""),
        (encoded(tar(("notes/values.yaml", b""), ("notes/Chart.yaml", GOOD))), ""),
        ("%", "must be base64"),
        (encoded(b"no archive"), "is no compressed archive"),
        (encoded(gzip.compress(b"no archive", mtime=0)), "is no compressed archive"),
        (encoded(archive({"templates/a.yaml": "a: b"})[:100]), "is no compressed archive"),
        (encoded(tar(("notes/values.yaml", b""))), "holds no Chart.yaml"),
        (encoded(tar(("Chart.yaml", GOOD))), "holds 'Chart.yaml', which is outside of the chart's directory"),
        (encoded(tar(("notes/Chart.yaml", GOOD), ("notes/../../x", b""))), "outside of the chart's directory"),
        (encoded(tar(("notes/Chart.yaml", GOOD), ("other/x", b""))), "a chart has one directory"),
        (encoded(tar(("notes/Chart.yaml", b"{"))), "is no YAML"),
        (encoded(tar(("notes/Chart.yaml", b"- a"))), "is no object"),
        (encoded(tar(("notes/Chart.yaml", b"{name: a, version: 1.0.0}"))), "apiVersion is neither v1 nor v2"),
        (encoded(tar(("notes/Chart.yaml", b"{apiVersion: v2, version: 1.0.0}"))), "without a name"),
        (encoded(tar(("notes/Chart.yaml", b"{apiVersion: v2, name: a, version: new}"))), "no semantic version"),
        (encoded(tar(("notes/Chart.yaml", GOOD[:-1] + b", type: library}"))), "is a library"),
        (encoded(tar(("notes/Chart.yaml", GOOD), ("notes/large", bytes(6 << 20)))), "is too large"),
        (encoded(tar(("notes/Chart.yaml", GOOD + b" " * (65 << 10)))), "more than 64 KiB"),
    ],
)
def test_a_chart_that_helm_cannot_load_is_named(chart: str, why: str) -> None:
    fault = chart_fault(chart)
    assert why in fault if why else fault == ""


def test_a_reference_to_a_registry_names_a_version() -> None:
    """Without one, each seed would pull whatever is newest at the moment."""
    for ref, fine in {
        "registry.example.org:5000/charts/a:v1": True,
        f"registry.example.org/charts/a@sha256:{'0' * 64}": True,
        "oci://registry.example.org:5000/charts/a": False,
        "registry.example.org/charts/a": False,
    }.items():
        helm = {"ociRepository": {"ref": ref}}
        deployment = {"apiVersion": "core.gardener.cloud/v1", "kind": "ControllerDeployment", "helm": helm}
        found = str(check_controller_deployment({**deployment, "metadata": {"name": "a"}}))
        assert ("must name a tag or a digest" in found) is not fine
