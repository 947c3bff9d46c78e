"""Admission policies of a seed at a real API server."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from api import resources
from api.policies import seed_policies
from api.resources import Resource
from kube.client import KubeClient, Object
from kube.errors import ApiError
from tests.gardens import ADMIN, ApiServer
from tests.unit.kube.waiting import until

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(120, func_only=True),
]

CONFIRMATION = "confirmation.gardener.cloud/deletion"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, kubernetes_is_built: None) -> Iterator[ApiServer]:
    made = ApiServer(tmp_path_factory.mktemp("seed"), {})
    with made.running():
        asyncio.run(_prepared(made))
        yield made


async def _prepared(server: ApiServer) -> None:
    await server.prepare_seed(*seed_policies())
    async with server.client() as admin:
        await admin.apply(extension("Worker", "probe"), manager="test")
        kind = resources.resource_of("extensions.gardener.cloud/v1alpha1", "Worker")

        async def protects() -> bool:
            """Whether the API server knows the policies: it reads them a moment after they are written."""
            await admin.apply(extension("Worker", "probe"), manager="test")
            return await refusal(admin, kind, "probe") is not None

        await until(protects, 60)


def extension(kind: str, name: str, annotations: Object | None = None) -> Object:
    spec: Object = {"type": "local", "region": "r", "secretRef": {"name": "s", "namespace": "default"}}
    match kind:
        case "Worker":
            spec |= {"infrastructureProviderStatus": {}, "pools": []}
        case "Bastion":
            spec = {"type": "local", "userData": "QQ==", "ingress": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}
        case "Infrastructure":
            spec |= {"sshPublicKey": "QQ=="}
    metadata = {"name": name, "namespace": "default", "annotations": annotations or {}}
    return {"apiVersion": "extensions.gardener.cloud/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


async def refusal(admin: KubeClient, kind: Resource, name: str) -> str | None:
    """Why the API server refuses to delete an object; None if it deletes the object."""
    try:
        await admin.delete(kind, name, "default" if kind.namespaced else None)
    except ApiError as error:
        return str(error)
    return None


@pytest.fixture
async def admin(server: ApiServer) -> AsyncIterator[KubeClient]:
    async with server.client(ADMIN) as client:
        yield client


@pytest.mark.row("deletion protection", "extension objects need a truthy annotation; Bastions need none")
@pytest.mark.parametrize(
    ("kind", "value", "goes"),
    [
        *(("Worker", value, True) for value in ("1", "t", "T", "true", "TRUE", "True")),
        *(("Worker", value, False) for value in ("", "false", "yes")),
        ("Worker", None, False),
        ("Infrastructure", None, False),
        ("Bastion", None, True),
    ],
)
async def test_an_extension_object_is_deleted_only_when_confirmed(
    admin: KubeClient, kind: str, value: str | None, goes: bool
) -> None:
    made = extension(kind, "one", {} if value is None else {CONFIRMATION: value})
    await admin.apply(made, manager="test")

    why = await refusal(admin, resources.resource_of(made["apiVersion"], kind), "one")

    assert (why is None) is goes, why
    assert goes or CONFIRMATION in (why or "")


@pytest.mark.row("deletion protection", "definitions with label gardener.cloud/deletion-protected need it, too")
async def test_a_definition_is_deleted_only_when_confirmed(admin: KubeClient) -> None:
    """Else all objects of the kind, and what these stand for, would go with it."""
    why = await refusal(admin, resources.CUSTOM_RESOURCE_DEFINITION, "networks.extensions.gardener.cloud")

    assert CONFIRMATION in (why or "")


@pytest.mark.row("deletion protection", "a deletion of a collection is checked object by object")
async def test_a_collection_with_an_unconfirmed_object_stays(admin: KubeClient) -> None:
    kind = resources.resource_of("extensions.gardener.cloud/v1alpha1", "Infrastructure")
    await admin.apply(extension("Infrastructure", "kept"), manager="test")
    with pytest.raises(ApiError, match="confirmation"):
        await admin.request("DELETE", kind.path("default"))

    assert await admin.find(kind, "kept", "default")


@pytest.mark.row("extension validation", "no change of the spec while the object is being deleted")
async def test_the_spec_of_an_object_in_deletion_is_frozen(admin: KubeClient) -> None:
    """A controller must delete the infrastructure that it has created, and no other."""
    made = extension("Infrastructure", "goes", {CONFIRMATION: "true"})
    made["metadata"]["finalizers"] = ["example.org/controller"]
    await admin.apply(made, manager="test")
    kind = resources.resource_of(made["apiVersion"], "Infrastructure")
    change: Object = {"spec": {"providerConfig": {"apiVersion": "v1", "kind": "Other"}}}
    await admin.patch(kind, "goes", "default", {"spec": {"providerConfig": {"apiVersion": "v1", "kind": "First"}}})
    await admin.delete(kind, "goes", "default")

    with pytest.raises(ApiError, match="being deleted"):
        await admin.patch(kind, "goes", "default", change)
    await admin.patch(kind, "goes", "default", {"metadata": {"annotations": {"gardener.cloud/operation": "reconcile"}}})
    await admin.patch(kind, "goes", "default", {"status": {"observedGeneration": 1}}, subresource="status")
    await admin.patch(kind, "goes", "default", {"metadata": {"finalizers": None}})

    assert await admin.find(kind, "goes", "default") is None


def network(**spec: Any) -> Object:
    wanted = {"type": "local", "podCIDR": "10.1.0.0/16", "serviceCIDR": "10.2.0.0/16", **spec}
    return {**extension("Network", "checked"), "spec": wanted}


def dns_record(record_type: str, *values: str) -> Object:
    made = extension("DNSRecord", "checked")
    return {**made, "spec": {**made["spec"], "name": "a.example.org", "recordType": record_type, "values": [*values]}}


def system_config(content: Object) -> Object:
    file = {"path": "/etc/a", "content": content}
    return {
        **extension("OperatingSystemConfig", "checked"),
        "spec": {"type": "local", "purpose": "reconcile", "files": [file]},
    }


def exposure(**spec: Any) -> Object:
    address = {"type": "InternalIP", "address": "192.0.2.1"}
    wanted = {"type": "local", "port": 443, "endpoints": [{"nodeName": "a", "addresses": [address]}], **spec}
    return {**extension("SelfHostedShootExposure", "checked"), "spec": wanted}


INLINE: Object = {"inline": {"data": "a"}}


@pytest.mark.row("extension validation", "Network: podCIDR and serviceCIDR are address ranges")
@pytest.mark.row("extension validation", "DNSRecord: values fit recordType; one value for CNAME")
@pytest.mark.row("extension validation", "SelfHostedShootExposure: a port, and one endpoint for each node")
@pytest.mark.row("extension validation", "OperatingSystemConfig: a file has exactly one source of its content")
@pytest.mark.parametrize(
    ("made", "why"),
    [
        (network(), ""),
        (network(podCIDR="fd00::/48", ipFamilies=["IPv6"]), ""),
        (network(podCIDR="10.1.0.0"), "spec.podCIDR"),
        (network(serviceCIDR="10.2.0.0/33"), "spec.serviceCIDR"),
        (dns_record("A", "192.0.2.1", "192.0.2.255"), ""),
        (dns_record("A", "192.0.2.1", "b.example.org"), "must be an IPv4 address"),
        (dns_record("A", "192.0.2.256"), "must be an IPv4 address"),
        (dns_record("AAAA", "2001:db8::1"), ""),
        (dns_record("AAAA", "192.0.2.1"), "must be an IPv6 address"),
        (dns_record("CNAME", "b.example.org"), ""),
        (dns_record("CNAME", "b.example.org", "c.example.org"), "exactly one value"),
        (dns_record("CNAME", "not a host"), "must be a host name"),
        (dns_record("TXT", "any text; at all"), ""),
        (exposure(), ""),
        (exposure(endpoints=[]), ""),
        (exposure(port=0), "spec.port"),
        (exposure(port=65536), "spec.port"),
        (exposure(endpoints=[{"nodeName": "a", "addresses": []}]), "spec.endpoints"),
        (exposure(endpoints=[*exposure()["spec"]["endpoints"]] * 2), "Duplicate value"),
        (system_config(INLINE), ""),
        # The client quotes no answers about this kind, whose files may hold credentials.
        (system_config({}), "422 Invalid"),
        (system_config({**INLINE, "secretRef": {"name": "a", "dataKey": "b"}}), "422 Invalid"),
    ],
)
async def test_an_extension_object_with_a_fault_is_refused(admin: KubeClient, made: Object, why: str) -> None:
    kind = resources.resource_of(made["apiVersion"], made["kind"])
    path = kind.path("default")
    if why:
        with pytest.raises(ApiError, match=why):
            await admin.request("POST", path, query={"dryRun": "All"}, body=made)
    else:
        await admin.request("POST", path, query={"dryRun": "All"}, body=made)


@pytest.mark.row("extension validation", "Network: ipFamilies can be added, but not removed")
async def test_a_network_keeps_its_families(admin: KubeClient) -> None:
    kind = resources.resource_of("extensions.gardener.cloud/v1alpha1", "Network")
    await admin.apply(network(ipFamilies=["IPv4"]), manager="test")
    await admin.patch(kind, "checked", "default", {"spec": {"ipFamilies": ["IPv4", "IPv6"]}})

    for families in (["IPv6"], None):
        with pytest.raises(ApiError, match="not removed"):
            await admin.patch(kind, "checked", "default", {"spec": {"ipFamilies": families}})


@pytest.mark.row("extension validation", "identity fields of each kind cannot change")
@pytest.mark.parametrize(
    ("made", "change"),
    [
        (extension("Infrastructure", "fixed"), {"type": "other"}),
        (extension("Infrastructure", "fixed"), {"region": "other"}),
        (extension("Worker", "fixed"), {"region": "other"}),
        (extension("ControlPlane", "fixed"), {"region": "other"}),
        (extension("Bastion", "fixed"), {"userData": "QUE="}),
        (dns_record("A", "192.0.2.1"), {"name": "b.example.org"}),
        (dns_record("A", "192.0.2.1"), {"recordType": "TXT"}),
        (network(), {"podCIDR": "10.3.0.0/16"}),
        (network(), {"serviceCIDR": "10.3.0.0/16"}),
        (exposure(), {"type": "other"}),
        (system_config(INLINE), {"purpose": "provision"}),
    ],
    ids=lambda each: each.get("kind") or next(iter(each)),
)
async def test_the_identity_of_an_extension_object_stays(admin: KubeClient, made: Object, change: Object) -> None:
    kind = resources.resource_of(made["apiVersion"], made["kind"])
    made = {**made, "metadata": {**made["metadata"], "name": "fixed"}}
    await admin.apply(made, manager="test")

    with pytest.raises(ApiError, match="422 Invalid" if made["kind"] == "OperatingSystemConfig" else "immutable"):
        await admin.patch(kind, "fixed", "default", {"spec": change})
