"""Users' programs use the official client: it must find our kinds by discovery, and read, write and watch them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import config
from kubernetes.client import ApiClient, CoreV1Api
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import DynamicApiError, NotFoundError

from tests.landscape.conftest import Landscape
from tests.landscape.shoots import NAMESPACE, Shoot

pytestmark = [pytest.mark.landscape, pytest.mark.timeout(180, func_only=True)]

_CORE = "core.gardener.cloud/v1beta1"
_ANNOTATION = "test.gardener.cloud/official-client"


def connected(kubeconfig: str) -> ApiClient:
    client: ApiClient = config.new_client_from_config(config_file=kubeconfig, persist_config=False)
    return client


@pytest.fixture
def garden(landscape: Landscape, tmp_path: Any) -> Iterator[DynamicClient]:
    with connected(landscape.facts["clusters"]["garden"]["kubeconfig"]) as client:
        # A cache of its own: the client keeps what it has discovered in a file.
        yield DynamicClient(client, cache_file=str(tmp_path / "discovery"))


def test_official_client_reads_a_shoot_as_kubectl_does(garden: DynamicClient, shoot: Shoot) -> None:
    found = garden.resources.get(api_version=_CORE, kind="Shoot").get(name=shoot.name, namespace=NAMESPACE).to_dict()
    live = shoot.get()

    assert found["metadata"]["uid"] == live["metadata"]["uid"]
    assert found["spec"] == live["spec"]
    assert found["status"]["technicalID"] == shoot.technical_id


def test_official_client_finds_each_kind_of_the_garden(garden: DynamicClient, landscape: Landscape) -> None:
    listed = json.loads(landscape.kubectl("garden", "get", "customresourcedefinitions", "-o", "json"))["items"]
    ours = [each["spec"] for each in listed if each["spec"]["group"].endswith("gardener.cloud")]

    assert ours
    for each in ours:
        version = next(version["name"] for version in each["versions"] if version["storage"])
        kind = garden.resources.get(api_version=f"{each['group']}/{version}", kind=each["names"]["kind"])
        assert (kind.name, kind.namespaced) == (each["names"]["plural"], each["scope"] == "Namespaced")


def test_official_client_applies_an_annotation_and_sees_it_in_a_watch(garden: DynamicClient, shoot: Shoot) -> None:
    shoots = garden.resources.get(api_version=_CORE, kind="Shoot")
    version = shoots.get(namespace=NAMESPACE).metadata.resourceVersion
    metadata = {"name": shoot.name, "namespace": NAMESPACE}
    patch = {"apiVersion": _CORE, "kind": "Shoot", "metadata": {**metadata, "annotations": {_ANNOTATION: "yes"}}}
    try:
        shoots.server_side_apply(body=patch, name=shoot.name, namespace=NAMESPACE, field_manager="official-client")
        events = shoots.watch(namespace=NAMESPACE, name=shoot.name, resource_version=version, timeout=60)
        seen = (each["raw_object"]["metadata"].get("annotations") or {} for each in events)

        assert any(each.get(_ANNOTATION) == "yes" for each in seen)
    finally:
        bare = {"apiVersion": _CORE, "kind": "Shoot", "metadata": metadata}
        shoots.server_side_apply(body=bare, name=shoot.name, namespace=NAMESPACE, field_manager="official-client")
    assert _ANNOTATION not in shoot.get()["metadata"].get("annotations", {})


def test_official_client_gets_the_reason_of_a_refusal(garden: DynamicClient, shoot: Shoot) -> None:
    shoots = garden.resources.get(api_version=_CORE, kind="Shoot")
    patch = {"spec": {"networking": {"nodes": 5}}}

    with pytest.raises(DynamicApiError) as refused:
        shoots.patch(
            name=shoot.name, namespace=NAMESPACE, body=patch, content_type="application/merge-patch+json", dry_run="All"
        )
    assert "networking" in refused.value.summary()

    with pytest.raises(NotFoundError):
        shoots.get(name="nobodys", namespace=NAMESPACE)


def test_official_client_lists_nodes_by_the_kubeconfig_of_the_shoot(shoot: Shoot) -> None:
    """The aggregated API issued the kubeconfig."""
    with connected(str(shoot.kubeconfig)) as client:
        nodes = {each.metadata.name for each in CoreV1Api(client).list_node().items}

    assert nodes == set().union(*shoot.nodes().values())
