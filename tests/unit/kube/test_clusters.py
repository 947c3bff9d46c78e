"""How activities come to a shoot's API server, and stay there when its credentials change."""

import asyncio
import base64
import json

import pytest

from activities.clusters import Clusters, ClusterView, clusters_read_once, patch_cluster
from api.resources import NAMESPACE
from kube.errors import NotFound
from tests.unit.kube.waiting import until

SECRETS, SERVICES = "/api/v1/secrets", "/api/v1/services"
CLUSTERS = "/apis/extensions.gardener.cloud/v1alpha1/clusters"


@pytest.fixture
async def clusters(api):
    clusters = Clusters(garden=api.client(), seed=api.client(), seed_name="seed-1")
    yield clusters
    await clusters.close()


def access(token="one"):
    config = {
        "current-context": "shoot",
        "contexts": [{"name": "shoot", "context": {"cluster": "shoot", "user": "shoot"}}],
        "clusters": [{"name": "shoot", "cluster": {"server": "https://api.one.dev.internal.test"}}],
        "users": [{"name": "shoot", "user": {"token": token} if token else {}}],
    }
    return {
        "kind": "Secret",
        "metadata": {"name": "gardener-internal", "namespace": "shoot--dev--one"},
        "data": {"kubeconfig": base64.b64encode(json.dumps(config).encode()).decode()},
    }


def service(address="100.64.0.7"):
    return {
        "kind": "Service",
        "metadata": {"name": "kube-apiserver", "namespace": "shoot--dev--one"},
        "spec": {"clusterIP": address, "ports": [{"port": 443}]},
    }


async def test_a_shoot_is_reached_by_cluster_ip_and_verified_by_its_services_name(api, clusters):
    """From inside the seed the gateway would be a detour, and its DNS record may not be there yet."""
    api.put(SECRETS, access())
    api.put(SERVICES, service())

    endpoint = (await clusters.shoot("shoot--dev--one")).endpoint

    assert endpoint.server == "https://100.64.0.7:443"
    assert endpoint.tls_server_name == "kube-apiserver.shoot--dev--one.svc"
    assert endpoint.token == "one"


async def test_a_renewed_token_is_taken_over_by_the_same_client(api, clusters):
    api.put(SECRETS, access())
    api.put(SERVICES, service())
    client = await clusters.shoot("shoot--dev--one")
    api.put(SECRETS, access("two"))

    async def renewed():
        return (await clusters.shoot("shoot--dev--one")).endpoint.token == "two"

    await until(renewed)

    assert client.endpoint.token == "two"


async def test_a_shoot_created_again_under_the_old_name_gets_a_new_client(api, clusters):
    api.put(SECRETS, access())
    api.put(SERVICES, service())
    old = await clusters.shoot("shoot--dev--one")
    api.remove(SECRETS, "gardener-internal", "shoot--dev--one")

    async def gone():
        try:
            await clusters.shoot("shoot--dev--one")
        except NotFound:
            return True
        return False

    await until(gone)
    api.put(SECRETS, access("new"))
    api.put(SERVICES, service("100.64.0.8"))
    new = await clusters.shoot("shoot--dev--one")

    assert new is not old
    assert new.endpoint.server == "https://100.64.0.8:443"


@pytest.mark.parametrize("token", ["", None])
async def test_access_without_a_token_yet_is_not_found(api, clusters, token):
    secret = access("")
    if token is None:
        secret["data"] = {}
    api.put(SECRETS, secret)

    with pytest.raises(NotFound, match="reading access to shoot shoot--dev--one"):
        await clusters.shoot("shoot--dev--one")


async def test_pinned_objects_are_read_from_the_cluster_and_not_from_memory(api, clusters):
    shoot = {
        "metadata": {"annotations": {"a": "b"}},
        "spec": {
            "hibernation": {"enabled": True},
            "provider": {"workers": []},
            "kubernetes": {"version": "1.37.1"},
        },
    }
    api.put(CLUSTERS, {"kind": "Cluster", "metadata": {"name": "shoot--dev--one"}, "spec": {"shoot": shoot}})

    view = await clusters.cluster("shoot--dev--one")

    assert (view.hibernated, view.workerless, view.kubernetes_version) == (True, True, "1.37.1")
    assert view.annotations == {"a": "b"}
    with pytest.raises(NotFound, match="reading seed from Cluster shoot--dev--one"):
        _ = view.seed
    api.change(CLUSTERS, "shoot--dev--one", None, {"spec": {"shoot": {"spec": {"hibernation": {"enabled": False}}}}})
    assert not (await clusters.cluster("shoot--dev--one")).hibernated


async def test_nothing_is_watched_for_a_shoot_that_is_gone(api, clusters):
    api.put(SECRETS, access())
    api.put(SERVICES, service())
    await clusters.shoot("shoot--dev--one")
    await until(lambda: api.watching == 1)

    api.remove(SECRETS, "gardener-internal", "shoot--dev--one")
    await until(lambda: not clusters._shoots and not clusters._closing)
    api.bookmark()  # the server notices a closed connection when it writes

    await until(lambda: api.watching == 0)


async def test_the_client_of_a_hibernated_shoot_is_closed(api, clusters):
    api.put(SECRETS, access())
    api.put(SERVICES, service())
    client = await clusters.shoot("shoot--dev--one")

    await clusters.forget_shoot("shoot--dev--one")

    with pytest.raises(Exception, match="client is closed"):
        await client.list(NAMESPACE)


@pytest.mark.parametrize(
    ("annotation", "seconds"), [(None, 300), ("0", 0), ("45", 45), ("1800", 1800), ("9999", 1800), ("soon", 300)]
)
def test_a_shoot_says_within_what_time_its_nodes_take_over_a_new_configuration(annotation, seconds):
    annotations = {"shoot.gardener.cloud/cloud-config-execution-max-delay-seconds": annotation} if annotation else {}
    view = ClusterView({"spec": {"shoot": {"metadata": {"annotations": annotations}}}})

    assert view.longest_update_delay == seconds


def cluster(**status):
    return {"metadata": {"name": "shoot--dev--one"}, "spec": {"shoot": {"metadata": {}, "status": status}}}


async def test_an_activity_reads_its_cluster_once(api, clusters):
    """It is 50 to 100 kB, and activities ask for it in many places."""
    api.put(CLUSTERS, cluster())
    with clusters_read_once():
        for _ in range(3):
            await asyncio.gather(clusters.cluster("shoot--dev--one"))
    assert api.count("GET", f"{CLUSTERS}/shoot--dev--one") == 1

    api.change(CLUSTERS, "shoot--dev--one", None, {"spec": {"shoot": {"status": {"a": "1"}}}})
    with clusters_read_once():
        assert (await clusters.cluster("shoot--dev--one")).shoot["status"] == {"a": "1"}, "another activity reads again"


async def test_an_activity_sees_what_it_has_written_into_its_cluster(api, clusters):
    api.put(CLUSTERS, cluster())
    with clusters_read_once():
        await clusters.cluster("shoot--dev--one")
        await patch_cluster(clusters.seed, "shoot--dev--one", {"spec": {"shoot": {"status": {"a": "1"}}}})
        assert (await clusters.cluster("shoot--dev--one")).shoot["status"] == {"a": "1"}
