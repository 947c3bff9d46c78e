"""The webhooks at a real API server: what becomes of new pods, and of new pods while no resource manager answers."""

import asyncio
import ssl
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from activities.components import resource_manager, scheduler
from activities.components import resource_manager_webhooks as registration
from activities.secrets.crypto import KeyPair
from api.crds import crds
from api.resources import (
    ENDPOINT_SLICE,
    MUTATING_WEBHOOK_CONFIGURATION,
    SECRET,
    VERTICAL_POD_AUTOSCALER,
)
from kube.errors import ApiError, Invalid
from tests.gardens import new_authority
from tests.unit.kube.waiting import until
from tests.unit.resource_manager.webhook_cluster import (
    MANAGED,
    MANAGER,
    SYSTEM,
    TOKEN_DIRECTORY,
    Cluster,
    Object,
    configured,
    of_seed,
    volumes,
)
from workers.lib import serving, webhook_certificates

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(120, func_only=True),
]


def _containers(pod: Object) -> list[Object]:
    return [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]


def _hosts(pod: Object) -> list[list[str]]:
    variables = [each.get("env") or () for each in _containers(pod)]
    return [[one["value"] for one in each if one["name"] == "KUBERNETES_SERVICE_HOST"] for each in variables]


@pytest.mark.row("webhooks", "projected token mount: pods whose ServiceAccount has automount false get a token for 12h")
async def test_a_pod_gets_the_token_that_its_account_does_not_mount(cluster: Cluster) -> None:
    async with cluster.of_shoot():
        pod = await cluster.create(serviceAccountName="silent")

    [volume] = [each for each in pod["spec"]["volumes"] if each["name"] == "kube-api-access-gardener"]
    assert volume["projected"]["defaultMode"] == 0o644
    token, bundle, namespace = volume["projected"]["sources"]
    assert token["serviceAccountToken"] == {"expirationSeconds": 43200, "path": "token"}
    assert bundle["configMap"] == {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    assert namespace["downwardAPI"]["items"][0]["fieldRef"]["fieldPath"] == "metadata.namespace"
    mount = {"name": "kube-api-access-gardener", "mountPath": TOKEN_DIRECTORY, "readOnly": True}
    assert [[_without_defaults(one) for one in each["volumeMounts"]] for each in _containers(pod)] == [[mount]] * 3


def _without_defaults(mount: Object) -> Object:
    return {key: value for key, value in mount.items() if key in ("name", "mountPath", "readOnly")}


@pytest.mark.row("webhooks", "projected token mount: annotation expiration-seconds sets the validity")
async def test_a_pod_chooses_the_validity_of_its_token(cluster: Cluster) -> None:
    key = "projected-token-mount.resources.gardener.cloud/expiration-seconds"
    async with cluster.of_shoot():
        pod = await cluster.create(serviceAccountName="silent", annotations={key: "3600"})
        with pytest.raises(Invalid, match="must be a number of seconds"):
            await cluster.create(serviceAccountName="silent", annotations={key: "1h"})

    [volume] = [each for each in pod["spec"]["volumes"] if each["name"] == "kube-api-access-gardener"]
    assert volume["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"] == 3600


@pytest.mark.row(
    "webhooks", "projected token mount: not for account default, automount true, a pod that says false, label skip"
)
async def test_other_pods_get_no_token_of_ours(cluster: Cluster) -> None:
    others: list[Object] = [
        {},
        {"serviceAccountName": "open"},
        {"serviceAccountName": "silent", "automountServiceAccountToken": False},
        {"serviceAccountName": "silent", "automountServiceAccountToken": True},
        {"serviceAccountName": "silent", "labels": {"projected-token-mount.resources.gardener.cloud/skip": "true"}},
        {"serviceAccountName": "silent", "namespace": "default"},
    ]
    async with cluster.of_shoot():
        made = [await cluster.create(**each) for each in others]

    assert all("kube-api-access-gardener" not in volumes(each) for each in made)


@pytest.mark.row("webhooks", "kubernetes service host: all containers of all namespaces; a variable of the pod stays")
async def test_containers_get_the_host_name_of_the_api_server(cluster: Cluster) -> None:
    own = [{"name": "one", "image": "i", "env": [{"name": "KUBERNETES_SERVICE_HOST", "value": "own"}]}]
    async with cluster.of_shoot():
        pod = await cluster.create(namespace="default")
        chosen = await cluster.create(namespace="default", containers=own)

    assert _hosts(pod) == [["api.example.org"]] * 3
    assert _hosts(chosen) == [["api.example.org"], ["own"]]


@pytest.mark.row("webhooks", "kubernetes service host: a pod or namespace opts out by inject=disable")
async def test_a_pod_or_namespace_opts_out_of_the_host_name(cluster: Cluster) -> None:
    label = {"apiserver-proxy.networking.gardener.cloud/inject": "disable"}
    async with cluster.of_shoot():
        made = [await cluster.create(namespace="default", labels=label), await cluster.create(namespace="closed")]

    assert [_hosts(each) for each in made] == [[[]] * 3] * 2


def _constraint(**fields: Any) -> Object:
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "a"}},
        **fields,
    }


@pytest.mark.row("webhooks", "pod topology spread constraints: each constraint selects the revision of the pod")
async def test_each_revision_of_a_deployment_is_spread_by_itself(cluster: Cluster) -> None:
    revision = {"pod-template-hash": "abc"}
    given = [_constraint(), _constraint(topologyKey="zone", matchLabelKeys=["pod-template-hash", "app"])]
    given[1]["labelSelector"] = {"matchExpressions": [{"key": "b", "operator": "Exists"}]}
    async with cluster.of_shoot():
        pod = await cluster.create(labels={**MANAGED, **revision, "app": "a"}, topologySpreadConstraints=given)

    first, second = pod["spec"]["topologySpreadConstraints"]
    assert first["labelSelector"] == {"matchLabels": {"app": "a", **revision}}
    assert second["labelSelector"]["matchLabels"] == revision
    assert second["matchLabelKeys"] == ["app"]


@pytest.mark.row(
    "webhooks", "pod topology spread constraints: not without pod-template-hash, label skip, unmanaged pods"
)
async def test_constraints_of_other_pods_stay(cluster: Cluster) -> None:
    revision = {"pod-template-hash": "abc"}
    skip = {"topology-spread-constraints.resources.gardener.cloud/skip": "true"}
    async with cluster.of_shoot():
        made = [
            await cluster.create(labels=labels, topologySpreadConstraints=[_constraint()])
            for labels in (MANAGED, revision, {**MANAGED, **revision, **skip})
        ]

    assert [each["spec"]["topologySpreadConstraints"] for each in made] == [[_constraint()]] * 3


@pytest.mark.row("webhooks", "system components: node selector and tolerations of the configuration")
@pytest.mark.row("webhooks", "system components: tolerations of taints of matching nodes, but not of temporary taints")
async def test_system_components_run_on_their_pools(cluster: Cluster) -> None:
    temporary = ["node.kubernetes.io/unschedulable", "ToBeDeletedByClusterAutoscaler"]
    temporary.append("node.gardener.cloud/critical-components-not-ready")
    taints = [{"key": "old", "value": "v", "effect": "NoExecute"}, {"key": "plain", "effect": "NoSchedule"}]
    taints += [{"key": each, "effect": "NoSchedule"} for each in temporary]
    for name, labels in (("system", SYSTEM), ("other", {})):
        own = taints if labels else [{"key": "foreign", "effect": "NoSchedule"}]
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": own},
        }
        await cluster.admin.create(node)
    async with cluster.of_shoot():
        pod = await cluster.create(labels=MANAGED, nodeSelector={"disk": "fast"})

    assert pod["spec"]["nodeSelector"] == {"disk": "fast", **SYSTEM}
    found = [each for each in pod["spec"]["tolerations"] if "kubernetes.io" not in each["key"]]
    assert found == [
        {"key": "pool", "operator": "Equal", "value": "system", "effect": "NoSchedule"},
        {"key": "old", "operator": "Equal", "value": "v", "effect": "NoExecute"},
        {"key": "plain", "operator": "Exists", "effect": "NoSchedule"},
    ]


@pytest.mark.row("webhooks", "system components: not for pods of DaemonSets, unmanaged pods, label skip")
async def test_pods_that_are_no_system_components_run_where_they_want(cluster: Cluster) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
    skip = {"system-components-config.resources.gardener.cloud/skip": "true"}
    async with cluster.of_shoot():
        made = [
            await cluster.create(labels=MANAGED, ownerReferences=[owner]),
            await cluster.create(),
            await cluster.create(labels={**MANAGED, **skip}),
            await cluster.create(namespace="default", labels=MANAGED),
        ]

    assert all("nodeSelector" not in each["spec"] for each in made)


@pytest.mark.row("webhooks", "static pods stay as they are")
async def test_a_static_pod_stays_as_it_is(cluster: Cluster) -> None:
    mirror = {"kubernetes.io/config.mirror": "abc"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
    await cluster.admin.create(node)
    async with cluster.of_shoot():
        pod = await cluster.create("static", labels=MANAGED, annotations=mirror, nodeName="n")

    assert _hosts(pod) == [[]] * 3
    assert "nodeSelector" not in pod["spec"]


@pytest.mark.row("webhooks", "no resource manager: pods of kube-system are held, pods of other namespaces start")
async def test_without_resource_manager_only_pods_of_the_system_are_held(cluster: Cluster) -> None:
    async with cluster.of_shoot():
        assert not await cluster.refuses(labels=MANAGED)

    assert await cluster.refuses(labels=MANAGED)
    assert await cluster.refuses()
    pod = await cluster.create(namespace="default", labels=MANAGED)
    assert _hosts(pod) == [[]] * 3

    async with cluster.of_shoot():
        assert not await cluster.refuses(labels=MANAGED)


@pytest.mark.row(
    "webhooks", "certificate: a renewed one in files is shown without a restart; no review fails meanwhile"
)
async def test_a_renewed_certificate_needs_no_restart(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundle first, then the certificate, as the gardenlet orders them when a CA is rotated."""
    monkeypatch.setattr(serving.ServingCertificate.follow, "__defaults__", (0.05,))
    async with cluster.of_shoot():
        new = new_authority("new ca")
        await cluster.register(new, cluster.authority)
        cluster.show(new)
        await until(lambda: is_shown_by(new, cluster.port), 10)
        await cluster.register(new)

        async def trusted() -> bool:
            stored = await cluster.admin.get(MUTATING_WEBHOOK_CONFIGURATION, registration.OF_SHOOT)
            return len(stored["webhooks"]) == len(MANAGER.webhooks)

        await until(trusted, 10)
        assert [await cluster.refuses(labels=MANAGED) for _ in range(20)] == [False] * 20


async def is_shown_by(authority: KeyPair, port: int) -> bool:
    """Whether the server shows a certificate of this authority."""
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    except ssl.SSLError:
        return False
    writer.close()
    return True


# The seed


@pytest.mark.row("webhooks", "seed: registered by the process, for namespaces with label gardener.cloud/role")
async def test_a_seed_registers_its_webhooks_itself(cluster: Cluster) -> None:
    async with of_seed(cluster):
        stored = await cluster.admin.get(MUTATING_WEBHOOK_CONFIGURATION, registration.OF_SEED)
        in_garden = await cluster.create(namespace="garden", serviceAccountName="silent")
        others = [
            await cluster.create(namespace=each, serviceAccountName="silent") for each in ("default", "kube-system")
        ]

    assert [each["name"].split(".")[0] for each in stored["webhooks"]] == [
        "high-availability-config",
        "projected-token-mount",
        "pod-topology-spread-constraints",
        "seccomp-profile",
        "endpoint-slice-hints",
    ]
    assert "kube-api-access-gardener" in volumes(in_garden)
    assert all("kube-api-access-gardener" not in volumes(each) for each in others)


@pytest.mark.row("webhooks", "seccomp profile: RuntimeDefault for pods that choose none; not with label skip")
async def test_pods_of_a_seed_are_confined(cluster: Cluster) -> None:
    others: list[Object] = [
        {"securityContext": {"seccompProfile": {"type": "Unconfined"}}},
        {"labels": {"seccompprofile.resources.gardener.cloud/skip": "true"}},
        {"namespace": "default"},
    ]
    async with of_seed(cluster):
        pod = await cluster.create(namespace="shoot--a--b", securityContext={"runAsUser": 7})
        made = [await cluster.create(**{"namespace": "shoot--a--b", **each}) for each in others]

    assert pod["spec"]["securityContext"] == {"runAsUser": 7, "seccompProfile": {"type": "RuntimeDefault"}}
    profiles = [each["spec"]["securityContext"].get("seccompProfile") for each in made]
    assert profiles == [{"type": "Unconfined"}, None, None]


@pytest.mark.row("webhooks", "seed, no resource manager: its own pods and the gardenlet's start, others are held")
async def test_a_seed_without_resource_manager_can_get_one_again(cluster: Cluster) -> None:
    async with of_seed(cluster):
        pass

    assert await cluster.refuses(namespace="shoot--a--b")
    assert await cluster.refuses(namespace="garden")
    await cluster.create(namespace="garden", labels={"app": "gardener-resource-manager"})
    await cluster.create(namespace="garden", labels={"app": "gardener", "role": "gardenlet"})
    await cluster.create(namespace="default")
    async with of_seed(cluster):
        assert not await cluster.refuses(namespace="garden")


@pytest.mark.row("webhooks", "seed: a new authority is trusted before its certificate is shown; no review fails")
async def test_a_new_authority_of_a_seed_needs_no_restart(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_certificates, "SETTLE", timedelta(seconds=2))
    async with of_seed(cluster):

        async def data() -> Object:
            found: Object = (await cluster.admin.get(SECRET, registration.SEED_SERVICE, "garden"))["data"]
            return found

        before = await data()
        renew = {"metadata": {"annotations": {"gardener.cloud/operation": "renew"}}}
        await cluster.admin.patch(SECRET, registration.SEED_SERVICE, "garden", renew)

        async def renewed() -> bool:
            assert not await cluster.refuses(namespace="shoot--a--b")
            return (await data())["tls.crt"] != before["tls.crt"]

        await until(renewed, 30)
        monkeypatch.setattr(webhook_certificates, "KEEP_OLD", timedelta())
        await cluster.admin.patch(SECRET, registration.SEED_SERVICE, "garden", {"metadata": {"labels": {"a": "b"}}})

        async def forgotten() -> bool:
            assert not await cluster.refuses(namespace="shoot--a--b")
            return "old-ca.crt" not in await data()

        await until(forgotten, 30)
        assert (await data())["ca.crt"] != before["ca.crt"]


# EndpointSlices


def _slice(**fields: Any) -> Object:
    """A slice with two endpoints that have zones, and one that has none."""
    endpoints: list[Object] = [{"addresses": [f"10.1.2.{number}"]} for number in range(3)]
    endpoints[0]["zone"], endpoints[1]["zone"] = "a", "b"
    metadata = {"namespace": "shoot--a--b", "generateName": "s-", **fields}
    made = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4"}
    return {**made, "metadata": metadata, "endpoints": endpoints}


_HINTS = {"endpoint-slice-hints.resources.gardener.cloud/consider": "true"}


def _zones(obj: Object) -> list[list[str]]:
    return [[one["name"] for one in (each.get("hints") or {}).get("forZones") or ()] for each in obj["endpoints"]]


@pytest.mark.row("webhooks", "endpoint slice hints: clients of a zone use the endpoints of their zone")
async def test_an_endpoint_serves_its_own_zone(cluster: Cluster) -> None:
    async with of_seed(cluster):
        made = await cluster.admin.create(_slice(labels=_HINTS))
        hinted = _zones(made)
        for each in made["endpoints"]:
            each.update(zone="c", hints=None)
        moved = await cluster.admin.request(
            "PUT", ENDPOINT_SLICE.path("shoot--a--b", made["metadata"]["name"]), body=made
        )

    assert hinted == [["a"], ["b"], []]
    assert _zones(moved) == [["c"]] * 3


@pytest.mark.row("webhooks", "endpoint slice hints: only with label consider, which a slice has from its Service")
async def test_other_endpoint_slices_stay(cluster: Cluster) -> None:
    async with of_seed(cluster):
        made = [
            await cluster.admin.create(_slice()),
            await cluster.admin.create(_slice(labels={next(iter(_HINTS)): "false"})),
            await cluster.admin.create(_slice(labels=_HINTS, namespace="default")),
        ]

    assert [_zones(each) for each in made] == [[[]] * 3] * 3
    assert await cluster.admin.create(_slice()), "slices of other Services do not need the resource manager"
    with pytest.raises(ApiError, match="failed calling webhook"):
        await cluster.admin.create(_slice(labels=_HINTS))


# Schedulers


@pytest.mark.row("webhooks", "pod scheduler name: pods of all namespaces that choose none; static pods stay")
async def test_pods_are_placed_by_the_scheduler_of_the_shoot(cluster: Cluster) -> None:
    await cluster.admin.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
    async with cluster.of_shoot():
        made = [
            await cluster.create(namespace="default"),
            await cluster.create(namespace="closed"),
            await cluster.create(namespace="default", schedulerName="own"),
            await cluster.create("s", "default", annotations={"kubernetes.io/config.mirror": "a"}, nodeName="n"),
        ]
    later = await cluster.create(namespace="default")

    names = [each["spec"]["schedulerName"] for each in made]
    assert names == ["bin-packing-scheduler", "bin-packing-scheduler", "own", "default-scheduler"]
    assert later["spec"]["schedulerName"] == "default-scheduler"


@pytest.mark.row("webhooks", "pod scheduler name: only in Shoots with scheduling profile bin-packing")
def test_pods_keep_the_default_scheduler_without_the_profile() -> None:
    plain = replace(MANAGER, scheduler_name=scheduler.name_for_pods({"profile": "balanced"}))

    assert registration.POD_SCHEDULER_NAME in MANAGER.webhooks
    assert registration.POD_SCHEDULER_NAME not in plain.webhooks
    assert configured(resource_manager.objects(plain))["podSchedulerName"]["enabled"] is False


# Vertical pod autoscalers


async def _autoscaled(cluster: Cluster, policy: Object | None, namespace: str = "kube-system", **labels: str) -> Object:
    """The update policy of a new VerticalPodAutoscaler, or an empty one."""
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}
    made: Object = await cluster.admin.create(
        {
            "apiVersion": "autoscaling.k8s.io/v1",
            "kind": "VerticalPodAutoscaler",
            "metadata": {"namespace": namespace, "generateName": "v-", "labels": labels},
            "spec": {"targetRef": target, **({"updatePolicy": policy} if policy is not None else {})},
        }
    )
    found: Object = made["spec"].get("updatePolicy") or {}
    return found


@pytest.mark.row("webhooks", "VPA in-place updates: InPlaceOrRecreate for Auto, Recreate or no mode; others stay")
@pytest.mark.row("webhooks", "VPA in-place updates: not with label skip, and not in namespaces of owners")
async def test_autoscalers_change_running_pods(cluster: Cluster) -> None:
    for definition in crds("autoscaled shoot"):
        await cluster.admin.apply(definition, manager="test")
    skip = {"vpa-in-place-updates.resources.gardener.cloud/skip": "true"}
    async with cluster.of_shoot():
        await until(lambda: cluster.knows(VERTICAL_POD_AUTOSCALER), 20)
        changed = [
            await _autoscaled(cluster, policy)
            for policy in (None, {"minReplicas": 2}, {"updateMode": "Auto"}, {"updateMode": "Recreate"})
        ]
        kept = [await _autoscaled(cluster, {"updateMode": mode}) for mode in ("Off", "Initial", "InPlace")]
        others = [
            await _autoscaled(cluster, {"updateMode": "Auto"}, **skip),
            await _autoscaled(cluster, {"updateMode": "Auto"}, "default"),
        ]

    assert [each["updateMode"] for each in changed] == ["InPlaceOrRecreate"] * 4
    assert changed[1]["minReplicas"] == 2
    assert [each["updateMode"] for each in kept] == ["Off", "Initial", "InPlace"]
    assert [each["updateMode"] for each in others] == ["Auto", "Auto"]


@pytest.mark.row("webhooks", "VPA in-place updates: only in Shoots with Gardener's vertical pod autoscaler")
def test_autoscalers_of_owners_keep_their_mode() -> None:
    plain = replace(MANAGER, vertical_autoscaling=False)

    assert registration.VPA_IN_PLACE_UPDATES in MANAGER.webhooks
    assert registration.VPA_IN_PLACE_UPDATES not in plain.webhooks
    assert configured(resource_manager.objects(plain))["vpaInPlaceUpdates"]["enabled"] is False
