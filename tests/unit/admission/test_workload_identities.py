"""WorkloadIdentities at admission, and the objects that name them."""

from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from tests.unit.admission.webhooks import SECURITY, FakeGarden, ask, patched
from tests.unit.api.shoots import SEED, changed, complete
from tests.workload_identities import binding, identity

Client = TestClient[Any, Any]


async def said(client: Client, obj: dict[str, Any], old: dict[str, Any] | None = None) -> str:
    response = await ask(client, "/validate", "UPDATE" if old else "CREATE", obj, old)
    return "" if response["allowed"] else str(response["status"]["message"])


def at_dns(name: str = "cloud", api_version: str = SECURITY, kind: str = "WorkloadIdentity") -> dict[str, Any]:
    provider = {
        "type": "local",
        "primary": True,
        "credentialsRef": {"apiVersion": api_version, "kind": kind, "name": name},
    }
    shoot = complete("spec.dns", {"domain": "demo.example.org", "providers": [provider]}).to_wire()
    return dict(shoot)


async def test_webhooks_of_extensions_select_an_identity_by_its_label(client: Client) -> None:
    stored = patched(identity(), await ask(client, "/mutate", "CREATE", identity()))

    assert stored["metadata"]["labels"] == {"provider.extensions.gardener.cloud/local": "true"}
    assert await said(client, stored) == ""
    assert "patch" not in await ask(client, "/mutate", "UPDATE", stored, stored)


async def test_an_identity_with_faults_is_invalid(client: Client) -> None:
    twice = changed(identity(), "spec.audiences", ["a", "a"])
    assert 'spec.audiences[1]: Duplicate value: "a"' in await said(client, twice)
    other = changed(identity(), "spec.targetSystem.type", "other")
    assert "spec.targetSystem.type: Invalid value" in await said(client, other, identity())


async def test_an_identity_that_is_being_deleted_may_lose_its_finalizers(client: Client) -> None:
    going = changed(identity(), "metadata.deletionTimestamp", "2026-11-21T12:00:00Z")
    assert await said(client, changed(going, "spec.audiences", ["a", "a"]), going) == ""


@pytest.mark.parametrize(
    ("type_", "refusal"),
    [("local", ""), ("aws", "credentialsRef: Forbidden: the WorkloadIdentity is for provider type aws")],
)
async def test_a_binding_must_be_for_the_type_of_its_identity(
    client: Client, garden: FakeGarden, type_: str, refusal: str
) -> None:
    garden.objects.append(identity(type_=type_))
    found = await said(client, binding())
    assert refusal in found
    assert bool(found) == bool(refusal)


async def test_a_binding_to_an_identity_needs_the_identity_and_the_right_to_read_it(
    client: Client, garden: FakeGarden
) -> None:
    assert "there is no such WorkloadIdentity" in await said(client, binding())
    garden.objects.append(identity())
    garden.denied.add(("get", "workloadidentities"))
    assert "user alice may not get WorkloadIdentity garden-local/cloud" in await said(client, binding())


async def test_dns_of_a_shoot_names_an_identity_of_the_type_of_its_provider(client: Client, garden: FakeGarden) -> None:
    assert "there is no such WorkloadIdentity in namespace garden-local" in await said(client, at_dns())
    garden.objects.append(identity(type_="aws"))
    refusal = await said(client, at_dns())
    assert "spec.dns.providers[0].credentialsRef: Forbidden: the WorkloadIdentity is for provider type aws" in refusal
    garden.objects[-1] = identity()
    assert "WorkloadIdentity" not in await said(client, at_dns())
    garden.denied.add(("get", "workloadidentities"))
    assert "user alice may not get WorkloadIdentity garden-local/cloud" in await said(client, at_dns())


async def test_references_to_identities_have_one_api_version(client: Client, garden: FakeGarden) -> None:
    garden.objects.append(identity())
    assert "spec.dns.providers[0].credentialsRef.apiVersion: Unsupported value" in await said(
        client, at_dns(api_version="v1")
    )
    assert "spec.dns.providers[0].credentialsRef.kind: Unsupported value" in await said(
        client, at_dns(kind="InternalSecret")
    )
    reference = {"apiVersion": "v1", "kind": "WorkloadIdentity", "name": "cloud"}
    shoot = complete("spec.resources", [{"name": "a", "resourceRef": reference}]).to_wire()
    assert "spec.resources[0].resourceRef.apiVersion: Unsupported value" in await said(client, dict(shoot))


async def test_seeds_and_backup_buckets_name_no_identity(client: Client) -> None:
    reference = {"apiVersion": SECURITY, "kind": "WorkloadIdentity", "namespace": "garden", "name": "cloud"}
    bucket = {
        "apiVersion": "core.gardener.cloud/v1beta1",
        "kind": "BackupBucket",
        "metadata": {"name": "bucket"},
        "spec": {"provider": {"type": "local", "region": "local"}, "credentialsRef": reference},
    }
    assert "spec.credentialsRef: Forbidden: backups with tokens of a WorkloadIdentity are not supported" in await said(
        client, bucket
    )
    usual = changed(bucket, "spec.credentialsRef", {"kind": "Secret", "namespace": "garden", "name": "x"})
    assert "spec.credentialsRef" not in await said(client, usual)
    seed = changed(SEED, "spec.dns.internal.credentialsRef", reference)
    assert "spec.dns.internal.credentialsRef: Forbidden: backups and DNS of seeds" in await said(client, seed)
