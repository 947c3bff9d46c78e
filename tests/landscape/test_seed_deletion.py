"""A seed is used, evacuated and deleted, and nothing is left of it; then its gardenlet adds it again.

The gardenlet is killed again and again while the seed is deleted.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import dns.message
import dns.query
import pytest

from tests.landscape.conftest import Landscape
from tests.landscape.shoots import CREATION, Shoot, eventually, refused

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(600, func_only=True)]

SEED, OTHER = "seed-2", "seed-1"
_READY_SECONDS = 120.0
_OF_THE_GARDENLET = ("gardenlet-kubeconfig", "gardener.cloud:gardenlet-ownership")
"""Names of objects that a gardenlet keeps while it runs, also without a Seed."""
_GONE_SECONDS = 240.0
_LAST_KILL = 60
"""Percent of the flow. A gardenlet that starts after the end of the flow would register its Seed again."""


@dataclass(frozen=True)
class Seed:
    """The seed that is deleted, as it was before."""

    landscape: Landscape
    before: dict[str, Any]

    @property
    def uid(self) -> str:
        return str(self.before["metadata"]["uid"])

    @property
    def ingress(self) -> str:
        return f"any.{self.before['spec']['ingress']['domain']}"

    def garden(self, *arguments: str) -> str:
        return self.landscape.kubectl("garden", *arguments)

    def live(self) -> dict[str, Any]:
        """The Seed as it is now; empty if it is gone."""
        found: dict[str, Any] = json.loads(self.garden("get", "seed", SEED, "--ignore-not-found", "-o", "json") or "{}")
        return found

    def is_ready(self) -> bool:
        live = self.live()
        status = live.get("status") or {}
        last = status.get("lastOperation") or {}
        return (status.get("observedGeneration"), last.get("state")) == (
            live.get("metadata", {}).get("generation"),
            "Succeeded",
        )

    def resolves(self) -> bool:
        answer = dns.query.udp(
            dns.message.make_query(self.ingress, "A"), self.landscape.facts["dns"]["server"], timeout=5
        )
        return bool(answer.answer)

    def in_garden(self) -> list[str]:
        """Objects of the garden that have the Seed's name or uid, or are in its namespace; Events are history."""
        kinds = [
            each
            for each in self.garden("api-resources", "--verbs=list", "-o", "name").split()
            if each.partition(".")[0] != "events"
        ]
        columns = "custom-columns=:.metadata.namespace,:.kind,:.metadata.name,:.spec.seedName,:.spec.seedRef.name"
        listed = self.garden("get", ",".join(kinds), "-A", "--no-headers", "-o", columns)
        names = {SEED, self.uid, f"seed-{SEED}"}
        return [" ".join(row) for row in map(str.split, listed.splitlines()) if names & set(row)]

    def in_seed(self) -> list[str]:
        """Kinds and policies of ours, and objects outside of the namespaces that Kubernetes has itself."""
        ours = ("gardener.cloud", "machine.sapcloud.io")
        listed = self.landscape.kubectl(
            SEED, "get", "crd,validatingadmissionpolicy,validatingadmissionpolicybinding", "-o", "name"
        )
        found = [each for each in listed.split() if each.endswith(ours)]
        listed = self.landscape.kubectl(SEED, "get", "priorityclass,clusterrole,clusterrolebinding", "-o", "name")
        found += [each for each in listed.split() if "gardener" in each and "provider-local" not in each]
        namespaces = self.landscape.kubectl(SEED, "get", "namespaces", "-o", "name").split()
        found += [each for each in namespaces if each.startswith(("namespace/istio-", "namespace/shoot-"))]
        columns = "custom-columns=:.kind,:.metadata.name"
        kinds = "pods,deployments,services,secrets,configmaps,roles,rolebindings,serviceaccounts"
        listed = self.landscape.kubectl(SEED, "-n", "garden", "get", kinds, "--no-headers", "-o", columns)
        kept = {"default", "kube-root-ca.crt", *_OF_THE_GARDENLET}
        return found + [" ".join(row) for row in map(str.split, listed.splitlines()) if row[1] not in kept]

    def bucket(self) -> list[str]:
        buckets = self.landscape.directory / "object-store/buckets"
        return [str(each.relative_to(buckets)) for each in buckets.glob(f"{self.uid}*")]


@pytest.fixture(scope="module")
def seed(landscape: Landscape) -> Iterator[Seed]:
    found = Seed(landscape, json.loads(landscape.kubectl("garden", "get", "seed", SEED, "-o", "json")))
    yield found
    if not found.live():
        _add_again(found)


@pytest.fixture(scope="module")
def shoot(landscape: Landscape, seed: Seed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoot]:
    """A control plane in the seed."""
    shoot = Shoot(landscape, "tenant", tmp_path_factory.mktemp("kubeconfigs"))
    manifest = shoot.manifest(seedName=SEED)
    del manifest["spec"]["provider"]["workers"], manifest["spec"]["networking"]
    del manifest["spec"]["credentialsBindingName"]
    shoot.apply(manifest)
    try:
        shoot.wait_for_state("Succeeded", CREATION)
        yield shoot
    finally:
        shoot.remove()


def test_a_seed_in_use_is_not_deleted(seed: Seed, shoot: Shoot) -> None:
    said = refused(*seed.landscape.argv("garden", "delete", "seed", SEED))
    assert f"it hosts Shoots: {shoot.reference}; move them to other seeds (`gardener seed evacuate {SEED}`)" in said


def test_nothing_is_left_of_an_evacuated_and_deleted_seed(seed: Seed, shoot: Shoot) -> None:
    """Its gardenlet is killed each time that a task has ended, in the middle of the next one."""
    assert seed.live()["metadata"]["finalizers"].count("gardener") == 1
    assert seed.resolves()
    assert seed.bucket()
    assert f"namespace/seed-{SEED}" in seed.garden("get", "namespaces", "-o", "name").split()
    shoot.gardener("seed", "evacuate", SEED, "--to", OTHER, timeout=CREATION)
    shoot.has_moved()
    eventually(lambda: not [each for each in seed.in_garden() if "BackupEntry" in each], "backups have moved", 60)

    seed.garden("delete", "seed", SEED, "--wait=false")
    killed: set[int] = set()

    def is_gone() -> bool:
        progress = ((seed.live().get("status") or {}).get("lastOperation") or {}).get("progress", 100)
        if progress not in killed and progress < _LAST_KILL:
            killed.add(progress)
            seed.landscape.gardener("kill", f"{SEED}/gardenlet")
        return not seed.live()

    eventually(is_gone, "the Seed is gone", _GONE_SECONDS)
    assert killed, "the gardenlet was never killed"
    shown = json.loads(shoot.gardener("seed", "show", SEED, "-o", "json"))
    assert (shown["operation"], shown["state"], shown["percent"]) == ("Delete", "Completed", 100)
    eventually(lambda: not seed.in_garden(), f"nothing of {SEED} is in the garden", 30)
    assert seed.in_seed() == []
    assert seed.bucket() == []
    assert not seed.resolves()
    assert shoot.get()["status"]["lastOperation"]["state"] == "Succeeded"


def test_a_deleted_seed_can_be_added_again(seed: Seed) -> None:
    _add_again(seed)
    live = seed.live()
    assert live["metadata"]["uid"] != seed.uid
    assert live["metadata"]["finalizers"].count("gardener") == 1


def _add_again(seed: Seed) -> None:
    """Kill the gardenlet: when it starts, it registers its Seed."""
    seed.landscape.gardener("kill", f"{SEED}/gardenlet")
    eventually(seed.is_ready, f"{SEED} is ready", _READY_SECONDS)
