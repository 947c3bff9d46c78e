"""Pods read the CA from a ConfigMap of their namespace; machines with new pods come only after it is new."""

import asyncio

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.secrets.configs import CertificateAuthority
from activities.shoot import rotation as module
from api.contracts.rotation import Kind, SurveyRequest
from tests.unit.kube.waiting import until
from tests.unit.rotation.conftest import TASK, World

CONFIG_MAPS = "/api/v1/configmaps"


async def bundle(world: World) -> tuple[str, str]:
    secrets = await world.secrets()
    await secrets.generate(CertificateAuthority("ca"))
    found = secrets.get("ca")
    return found.name, found.data["bundle.crt"].decode()


def publish(world: World, namespace: str, ca: str) -> None:
    world.shoot.put(CONFIG_MAPS, {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": ca}}, namespace)


async def test_it_waits_until_the_last_namespace_has_the_new_bundle_and_labels_all(world: World) -> None:
    await bundle(world)
    world.rotates("certificateAuthorities", "Preparing")
    name, both = await bundle(world)
    assert both.count("BEGIN CERTIFICATE") == 2
    publish(world, "default", both)
    publish(world, "late", "old")

    waiting = asyncio.create_task(ActivityEnvironment().run(world.activities.wait_root_ca_configmaps, TASK))
    done, _ = await asyncio.wait([waiting], timeout=0.3)
    assert not done
    publish(world, "late", both)
    assert (await asyncio.wait_for(waiting, 10)).note == "2 namespaces"

    for namespace in ("default", "late"):
        live = world.shoot.find(CONFIG_MAPS, "kube-root-ca.crt", namespace)
        assert live is not None
        assert live["metadata"]["labels"] == {"credentials.gardener.cloud/ca-bundle-name": name}


async def test_a_namespace_that_stays_behind_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROOT_CA_SECONDS", 0.2)
    await bundle(world)
    publish(world, "forgotten", "old")
    with pytest.raises(ApplicationError, match="namespaces forgotten; is its kube-controller-manager running"):
        await ActivityEnvironment().run(world.activities.wait_root_ca_configmaps, TASK)


@pytest.mark.parametrize(("workers", "behind"), [([{"name": "a"}], ["namespace late"]), ([], [])])
async def test_a_namespace_that_stays_behind_holds_the_completion_where_there_are_pods(
    world: World, workers: list[dict[str, str]], behind: list[str]
) -> None:
    """Without workers there are no pods, and no task waits for the ConfigMaps before the rotation is prepared."""
    world.pinned["spec"]["provider"]["workers"] = workers
    world.activities._clusters.garden = world.client
    for phase in ("", "Prepared"):
        if phase:
            world.rotates("certificateAuthorities", phase)
        secrets = await world.secrets()
        for name in ("ca-client", "ca-kubelet"):
            await secrets.generate(CertificateAuthority(name))
        _, both = await bundle(world)
    publish(world, "default", both)
    publish(world, "late", "old")
    request = SurveyRequest(
        shoot=TASK.shoot, technical_id=TASK.technical_id, seed=TASK.seed, kind=Kind.CERTIFICATE_AUTHORITIES
    )

    found = await world.activities.find_users_of_old_credentials(request)

    assert [each.who for each in found.users] == behind


async def test_the_client_authorities_config_map_drops_old_authorities(world: World) -> None:
    """The API server adds to the ConfigMap and removes nothing: old authorities would be trusted for 10 years."""

    async def authorities() -> str:
        secrets = await world.secrets()
        for name in ("ca-client", "ca-front-proxy"):
            await secrets.generate(CertificateAuthority(name))
        return "".join(secrets.get(name).data["bundle.crt"].decode() for name in ("ca-client", "ca-front-proxy"))

    def tell(text: str) -> None:
        name = "extension-apiserver-authentication"
        config_map = {"metadata": {"name": name}, "data": {"client-ca-file": text, "requestheader-allowed-names": "[]"}}
        world.shoot.put(CONFIG_MAPS, config_map, "kube-system")

    old = await authorities()
    world.rotates("certificateAuthorities", "Completing")
    new = await authorities()
    tell(old + new)
    dropping = asyncio.create_task(ActivityEnvironment().run(world.activities.drop_old_client_authorities, TASK))
    # Not by the clock: on a busy machine the API server would publish the new ones before the old ones are gone.
    await until(lambda: world.shoot.find(CONFIG_MAPS, "extension-apiserver-authentication", "kube-system") is None)
    done, _ = await asyncio.wait([dropping], timeout=0.1)
    assert not done
    tell(new)
    assert (await asyncio.wait_for(dropping, 10)).note == "2 old authorities"

    assert (await ActivityEnvironment().run(world.activities.drop_old_client_authorities, TASK)).note.startswith("0")
    live = world.shoot.find(CONFIG_MAPS, "extension-apiserver-authentication", "kube-system")
    assert live is not None
    assert live["data"]["client-ca-file"] == new
