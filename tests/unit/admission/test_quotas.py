"""Shoots at the webhook are held to the Quotas of their credentials."""

import asyncio
import dataclasses
import json
from typing import Any

import pytest

from api.core.v1beta1.shoot import Shoot
from api.decisions.quota import MAX_QUANTITY, METRICS, Reservation, named_quotas
from kube.errors import Forbidden
from tests.unit.admission.test_logins import config_map
from tests.unit.admission.webhooks import BINDING, ask
from tests.unit.api.shoots import PROFILE, changed, complete
from tests.unit.api.test_quota import quota
from workers.admission import quotas
from workers.admission.review import Refusal, Review
from workers.lib.access import User

TRIAL = {"namespace": "garden-local", "name": "trial"}
CORES = {"cpu": "10"}
"""A Shoot of these tests needs 4 cores: 2 machines with 2 cores each."""


@pytest.fixture
def limited(garden):
    """The garden, in which the binding names a Quota with 10 cores for the project."""
    limit(garden, quota(CORES), "local")
    return garden


def limit(garden: Any, limiting: dict[str, Any], *bindings: str) -> None:
    """Let bindings name a Quota."""
    garden.objects.append(limiting)
    for name in bindings:
        binding = next(each for each in garden.objects if each["metadata"]["name"] == name and "credentialsRef" in each)
        garden.objects.remove(binding)
        metadata = limiting["metadata"]
        named = {"namespace": metadata["namespace"], "name": metadata["name"]}
        garden.objects.append(changed(binding, "quotas", [*(binding.get("quotas") or []), named]))


def bind(garden: Any, name: str, namespace: str = "garden-local", secret: str = "local") -> None:
    binding = changed(
        changed(BINDING, "metadata", {"name": name, "namespace": namespace}), "credentialsRef.name", secret
    )
    garden.objects.append(binding)


def shoot(name: str = "demo", maximum: int = 2, namespace: str = "garden-local", **fields: Any) -> dict[str, Any]:
    obj = complete("spec.provider.workers.0.maximum", maximum).to_wire()
    obj["metadata"] |= {"name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}"}
    obj["spec"] |= fields
    return obj


def stored(garden: Any, obj: dict[str, Any], generation: int = 1) -> dict[str, Any]:
    obj = changed(obj, "metadata.generation", generation)
    garden.objects[:] = [each for each in garden.objects if each["metadata"].get("uid") != obj["metadata"]["uid"]]
    garden.objects.append(obj)
    return obj


def creation(obj: dict[str, Any]) -> Review:
    metadata = obj["metadata"]
    return Review(
        uid="r",
        operation="CREATE",
        group="core.gardener.cloud",
        plural="shoots",
        kind="Shoot",
        namespace=metadata["namespace"],
        name=metadata["name"],
        user=User("alice"),
        object=obj,
        old=None,
    )


async def refusal(client: Any, *objects: dict[str, Any]) -> str:
    """Message of a refused write; empty if it is accepted."""
    response = await ask(client, "/validate", "UPDATE" if objects[1:] else "CREATE", *objects)
    return "" if response["allowed"] else str(response["status"]["message"])


async def test_a_shoot_within_its_quota_is_accepted(client, limited):
    assert await refusal(client, shoot()) == ""
    assert await refusal(client, shoot(maximum=5)) == ""


async def test_a_quota_without_binding_limits_nothing(client, garden):
    garden.objects.append(quota({"cpu": "0"}))
    assert await refusal(client, shoot()) == ""


async def test_a_message_names_quota_scope_and_amounts(client, limited):
    stored(limited, shoot("first"))
    assert await refusal(client, shoot(maximum=4)) == (
        'shoots.core.gardener.cloud "demo" is forbidden: Quota garden-local/trial for the project is exceeded: '
        "cpu: 4 used, 8 asked, 10 allowed"
    )


async def test_a_shoot_that_is_refused_for_another_reason_reserves_nothing(client, limited):
    """A grant counts for 30 s, and would keep other Shoots out."""
    limited.objects.append(config_map("issuers", {"kind": "AuthenticationConfiguration"}))
    faulty = complete(
        "spec.kubernetes.kubeAPIServer", {"structuredAuthentication": {"configMapName": "issuers"}}, bound=True
    ).to_wire()
    assert "ConfigMap garden-local/issuers" in await refusal(client, shoot(kubernetes=faulty["spec"]["kubernetes"]))
    assert not [each for each in limited.objects if each["kind"] == "Lease"]


async def test_each_metric_is_told(client, garden):
    limit(garden, quota({"cpu": "1", "memory": "4Gi", "loadbalancer": "0", "gpu": "9"}), "local")
    text = await refusal(client, shoot())
    cpu, load_balancer = "cpu: 0 used, 4 asked, 1 allowed", "loadbalancer: 0 used, 1 asked, 0 allowed"
    assert text.endswith(f"{cpu}; {load_balancer}; memory: 0 used, 8Gi asked, 4Gi allowed")


async def test_storage_is_limited_by_class(client, garden):
    volumes = [{"name": "disk", "class": "premium"}, {"name": "odd", "class": "archive"}]
    garden.objects[garden.objects.index(PROFILE)] = changed(PROFILE, "spec.volumeTypes", volumes)
    limit(garden, quota({"storage.premium": "50Gi"}), "local")

    def with_volume(**volume: str) -> dict[str, Any]:
        return changed(shoot(), "spec.provider.workers.0.volume", volume)

    assert await refusal(client, with_volume(type="disk", size="25Gi")) == ""
    assert "storage.premium: 0 used, 60Gi asked, 50Gi allowed" in await refusal(
        client, with_volume(type="disk", size="30Gi")
    )
    assert "volumes of class archive cannot be counted" in await refusal(client, with_volume(type="odd", size="1Gi"))
    assert "volumes of class unknown cannot be counted" in await refusal(client, with_volume(size="1Gi"))


async def test_all_quotas_of_a_binding_hold(client, limited):
    limit(limited, changed(quota({"memory": "1Gi"}, "Secret"), "metadata.name", "second"), "local")
    text = await refusal(client, shoot())
    assert "Quota garden-local/second for all clusters with these credentials is exceeded: memory" in text


async def test_a_quota_of_a_project_counts_this_project_alone(client, limited):
    bind(limited, "other", "garden-other", "theirs")
    limit_too = next(each for each in limited.objects if each["metadata"]["name"] == "other")
    limited.objects[limited.objects.index(limit_too)] = changed(limit_too, "quotas", [TRIAL])
    stored(limited, shoot("theirs", 5, "garden-other", credentialsBindingName="other"))
    assert await refusal(client, shoot()) == ""


async def test_a_quota_of_credentials_counts_shoots_of_all_projects(client, garden):
    limit(garden, quota(CORES, "Secret"), "local")
    bind(garden, "other", "garden-other")
    stored(garden, shoot("theirs", 4, "garden-other", credentialsBindingName="other"))
    text = await refusal(client, shoot())
    assert "cpu: 8 used, 4 asked, 10 allowed" in text
    assert "theirs" not in text, "messages do not name Shoots of other projects"
    assert "garden-other" not in text


async def test_a_shoot_may_shrink_while_its_quota_is_exceeded(client, garden):
    limit(garden, quota({"cpu": "1"}), "local")
    old = stored(garden, shoot(maximum=4))
    assert await refusal(client, shoot(maximum=3), old) == ""
    assert await refusal(client, shoot(maximum=4, purpose="testing"), old) == ""
    assert "cpu: 8 used, 2 asked, 1 allowed" in await refusal(client, shoot(maximum=5), old)


async def test_another_machine_type_is_counted_by_metric(client, garden):
    """It may need fewer cores and more memory."""
    kinds = [*PROFILE["spec"]["machineTypes"], {"name": "fat", "cpu": "1", "gpu": "0", "memory": "64Gi"}]
    garden.objects[garden.objects.index(PROFILE)] = changed(PROFILE, "spec.machineTypes", kinds)
    limit(garden, quota({"cpu": "1", "memory": "100Gi"}), "local")
    old = stored(garden, shoot())
    text = await refusal(client, changed(shoot(), "spec.provider.workers.0.machine.type", "fat"), old)
    assert text.endswith("memory: 8Gi used, 120Gi asked, 100Gi allowed")


async def test_a_shoot_that_is_being_deleted_counts(client, limited):
    stored(limited, changed(shoot("first", 5), "metadata.deletionTimestamp", "2026-11-21T12:00:00Z"))
    assert "cpu: 10 used" in await refusal(client, shoot())


async def test_a_namespaced_profile_is_counted_with_its_parent_and_not_by_its_status(limited):
    """A controller writes the status later; until then it may hold anything."""
    profile = {
        "apiVersion": "core.gardener.cloud/v1beta1",
        "kind": "NamespacedCloudProfile",
        "metadata": {"name": "own", "namespace": "garden-local"},
        "spec": {"parent": {"kind": "CloudProfile", "name": PROFILE["metadata"]["name"]}},
        "status": {"cloudProfileSpec": {"machineTypes": []}},
    }
    limited.objects.append(profile)
    written = shoot(cloudProfile={"kind": "NamespacedCloudProfile", "name": "own"})
    found = await quotas._profile_of(written, limited)
    assert found is not None
    assert found["machineTypes"] == PROFILE["spec"]["machineTypes"]


async def test_a_quota_that_is_gone_lets_nothing_grow(client, limited):
    limited.objects.remove(next(each for each in limited.objects if each["kind"] == "Quota"))
    old = stored(limited, shoot())
    assert "Quota garden-local/trial, which a binding of these credentials names, does not exist" in await refusal(
        client, shoot(maximum=3), old
    )
    assert await refusal(client, shoot(maximum=1), old) == ""


async def test_a_change_that_counts_for_nothing_needs_no_profile(client, garden):
    """A Shoot whose machine type has left the profile can still be hibernated, repaired and made smaller."""
    limit(garden, quota({"cpu": "1"}), "local")
    old = stored(garden, changed(shoot(), "spec.provider.workers.0.machine.type", "gone"))
    assert await refusal(client, changed(old, "spec.hibernation", {"enabled": True}), old) == ""
    text = await refusal(client, changed(old, "spec.provider.workers.0.maximum", 9), old)
    assert "spec.provider.workers: a Quota limits them, but machine type gone is in no CloudProfile" in text


# Two writes at once


def leases(garden: Any) -> list[dict[str, Any]]:
    return [each for each in garden.objects if each["kind"] == "Lease"]


async def test_shoots_that_are_created_at_once_share_what_is_left(client, limited):
    """The first Shoot is not stored yet when the second one is reviewed."""
    texts = await asyncio.gather(*(refusal(client, shoot(f"s-{each}")) for each in range(5)))
    refused = [each for each in texts if each]
    assert len(refused) == 3, "10 cores are enough for 2 of 5 Shoots with 4 cores each"
    assert all("8 used (8 of it by requests of the last seconds), 4 asked, 10 allowed" in each for each in refused)


async def test_replicas_of_admission_take_turns(limited, monkeypatch):
    """Each replica has locks of its own; the Lease's resource version decides."""
    monkeypatch.setattr(type(limited), "turn", lambda self, name: asyncio.Lock())

    async def create(name: str) -> str:
        obj = shoot(name)
        try:
            await quotas.check_quotas(creation(obj), Shoot.of(obj), None, limited)
        except Refusal as refusal:
            return str(refusal)
        return ""

    texts = await asyncio.gather(*(create(f"s-{each}") for each in range(4)))
    assert sorted("cpu: 8 used" in each for each in texts if each) == [True, True]


async def test_a_write_that_is_seen_counts_once(client, limited):
    assert await refusal(client, shoot("first", 3)) == ""
    stored(limited, shoot("first", 3))
    assert await refusal(client, shoot()) == ""


async def test_a_write_of_the_same_shoot_replaces_its_reservation(client, limited):
    """The API server repeats reviews of a write that met a conflict."""
    for _ in range(3):
        assert await refusal(client, shoot("first", 5)) == ""
    [lease] = leases(limited)
    assert len(json.loads(lease["metadata"]["annotations"][quotas.RESERVATIONS])) == 1


async def test_a_reservation_ends_after_some_seconds(client, limited, monkeypatch):
    """Another webhook may have refused the write."""
    assert await refusal(client, shoot("first", 5)) == ""
    assert "by requests of the last seconds" in await refusal(client, shoot())
    monkeypatch.setattr(quotas, "RESERVED_SECONDS", 0.0)
    assert await refusal(client, shoot()) == ""


async def test_a_refused_write_reserves_nothing(client, limited):
    assert await refusal(client, shoot(maximum=6)) != ""
    assert leases(limited) == []


async def test_a_dry_run_reserves_nothing(limited):
    obj = shoot()
    review = dataclasses.replace(creation(obj), dry_run=True)
    await quotas.check_quotas(review, Shoot.of(obj), None, limited)
    assert leases(limited) == []


async def test_the_lease_belongs_to_the_quota(client, limited):
    await refusal(client, shoot())
    [lease] = leases(limited)
    assert lease["metadata"]["name"] == "quota-q-1"
    assert lease["metadata"]["ownerReferences"][0]["uid"] == "q-1", "Kubernetes deletes it with the Quota"


# The objects


async def test_a_quota_is_validated(client):
    response = await ask(client, "/validate", "CREATE", quota({"cpu": "-1"}))
    assert response["status"]["code"] == 422
    assert "spec.metrics[cpu]: Invalid value" in response["status"]["message"]
    assert (await ask(client, "/validate", "CREATE", quota(CORES)))["allowed"]
    assert (await ask(client, "/validate", "DELETE", None, quota(CORES)))["allowed"], "a finalizer delays it"


async def test_the_finalizer_of_a_quota_stays_while_a_binding_names_it(client, limited):
    held = changed(quota(CORES), "metadata.finalizers", ["gardener"])
    assert "1 bindings name it: delete them first" in await refusal(client, quota(CORES), held)
    limited.objects[:] = [each for each in limited.objects if "credentialsRef" not in each]
    assert await refusal(client, quota(CORES), held) == ""


async def test_a_binding_names_one_quota_for_each_scope(client, garden):
    second = changed(quota(), "metadata.name", "second")
    garden.objects += [quota(), second]
    both = [TRIAL, {**TRIAL, "name": "second"}]
    text = await refusal(client, changed(BINDING, "quotas", both))
    assert "quotas[1]: Forbidden: another Quota of scope the project is named already: remove one" in text
    assert await refusal(client, changed(BINDING, "quotas", [TRIAL])) == ""


async def test_a_quota_refuses_writes_that_come_faster_than_it_can_note(client, limited, monkeypatch):
    monkeypatch.setattr(quotas, "_MAX_RESERVATIONS", 1)
    assert await refusal(client, shoot("first", 1)) == ""
    response = await ask(client, "/validate", "CREATE", shoot("second", 1))
    assert response["status"]["code"] == 429
    assert "too many Shoots of Quota garden-local/trial are written at once: repeat" in response["status"]["message"]


def test_the_largest_lease_fits_into_an_object():
    amounts = dict.fromkeys(METRICS, MAX_QUANTITY)
    largest = Reservation("n" * 63, "0" * 36, 10**6, 10**10, amounts)
    assert len(json.dumps(largest.to_wire())) * quotas._MAX_RESERVATIONS < 2**18


async def test_a_quota_without_metrics_needs_no_lease(client, garden):
    limit(garden, quota(), "local")
    assert await refusal(client, shoot()) == ""
    assert leases(garden) == []


async def test_a_grant_that_cannot_be_noted_is_refused(client, limited, monkeypatch):
    """The namespace of the Quota may be ending: no Lease can be created there."""

    async def create(*_: object) -> dict[str, Any]:
        raise Forbidden(403, "Forbidden", "creating Lease garden-local/quota-q-1")

    monkeypatch.setattr(limited, "create", create)
    response = await ask(client, "/validate", "CREATE", shoot())
    assert response["status"]["code"] == 503
    assert "the grant of Quota garden-local/trial cannot be noted, repeat the request" in response["status"]["message"]


async def test_a_binding_names_each_of_its_quotas(client):
    """An index reads the names of all bindings: an entry without one would end it."""
    nameless = changed(BINDING, "quotas", [{}])
    response = await ask(client, "/validate", "CREATE", nameless)
    assert "quotas[0].name: Required value" in response["status"]["message"]
    assert named_quotas(nameless) == []
