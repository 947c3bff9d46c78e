"""The webhook for high availability at a real API server: replicas, zones and spreading of workloads."""

from typing import Any

import pytest

from activities.components import shoot_system
from activities.seed.facts import zones_of_system_pools
from api.crds import crds
from api.high_availability import (
    CONSIDER,
    FAILURE_TOLERANCE_TYPE,
    HOST_SPREAD,
    REPLICAS,
    SKIP,
    TYPE,
    ZONE_PINNING,
    ZONES,
)
from api.resources import DEPLOYMENT, HORIZONTAL_POD_AUTOSCALER, MANAGED_RESOURCE, NODE, STATEFUL_SET
from kube.client import KubeClient
from kube.errors import ApiError, Invalid
from tests.unit.components.test_connections import OBJECTS
from tests.unit.kube.waiting import until
from tests.unit.resource_manager.at_api_server import Manager
from tests.unit.resource_manager.webhook_cluster import MANAGED, Cluster, Object, of_seed

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.usefixtures("kubernetes_is_built"),
    pytest.mark.timeout(120, func_only=True),
]
NAMESPACE = "shoot--a--b"
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
KINDS = {each.kind: each for each in (DEPLOYMENT, STATEFUL_SET, HORIZONTAL_POD_AUTOSCALER)}


async def place(cluster: Cluster, consider: str = "true", **annotations: str) -> None:
    """Set the label of the namespace, and its annotations: ``tolerance``, ``zones`` and ``pinning``.

    Returns once the API server selects the namespace for the webhook, or selects it no longer.
    """
    keys = {"tolerance": FAILURE_TOLERANCE_TYPE, "zones": ZONES, "pinning": ZONE_PINNING}
    metadata = {
        "name": NAMESPACE,
        "labels": {CONSIDER: consider},
        "annotations": {keys[name]: value for name, value in annotations.items()},
    }
    await cluster.admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}, manager="gardenlet")

    async def selected() -> bool:
        return await is_reviewed(cluster, workload()) is (consider == "true")

    await until(selected, 30)


async def is_reviewed(cluster: Cluster, obj: Object, namespace: str = NAMESPACE) -> bool:
    """Whether the API server calls the webhook for a new workload, also if no resource manager answers.

    The API server selects namespaces from a cache, which may be behind a label that was just written.
    """
    try:
        spec = await created(cluster, {**obj, "metadata": {**obj["metadata"], "name": "probe"}}, namespace)
    except ApiError as error:
        return "failed calling webhook" in str(error)
    return "tolerations" in spec["template"]["spec"]


async def nodes(cluster: Cluster, *names: str) -> None:
    """Create nodes, and wait until the webhook knows them."""
    for name in names:
        await cluster.admin.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    known = cluster.caches.of(NODE)
    await known.wait_until(lambda cache: all(cache.get(name) for name in names), 20)


def workload(kind: str = "Deployment", replicas: int = 1, *, of_type: str = "", **fields: Any) -> Object:
    """A workload. ``fields``: labels and annotations of the object; the others are the spec of its pods."""
    labels = {**fields.pop("labels", {}), **({TYPE: of_type} if of_type else {})}
    metadata = {"name": "w", "namespace": NAMESPACE, "labels": labels, "annotations": fields.pop("annotations", {})}
    pod = {"containers": [{"name": "one", "image": "i"}], **fields}
    spec: Object = {
        "replicas": replicas,
        "selector": {"matchLabels": {"app": "w"}},
        "template": {"metadata": {"labels": {"app": "w", "role": "r"}}, "spec": pod},
    }
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec}


async def created(cluster: Cluster, obj: Object, namespace: str = NAMESPACE) -> Object:
    """The spec of a new object, after a dry run."""
    path = KINDS[obj["kind"]].path(namespace)
    body = {**obj, "metadata": {**obj["metadata"], "namespace": namespace}}
    made: Object = await cluster.admin.request("POST", path, query={"dryRun": "All"}, body=body)
    spec: Object = made["spec"]
    return spec


async def replicas_of(cluster: Cluster, obj: Object) -> int:
    return int((await created(cluster, obj))["replicas"])


def constraints(spec: Object) -> dict[str, tuple[str, int | None]]:
    """Effect and number of domains of each constraint of the pods, by its topology key."""
    found = spec["template"]["spec"].get("topologySpreadConstraints") or ()
    return {each["topologyKey"]: (each["whenUnsatisfiable"], each.get("minDomains")) for each in found}


def zones(spec: Object) -> list[list[Object]]:
    """Expressions of each term of the required affinity to nodes."""
    affinity = (spec["template"]["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return [each["matchExpressions"] for each in required.get("nodeSelectorTerms") or ()]


def scaler(least: int, most: int, **labels: str) -> Object:
    """A HorizontalPodAutoscaler for the workload."""
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "w"}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "w", "namespace": NAMESPACE, "labels": labels},
        "spec": {"scaleTargetRef": target, "minReplicas": least, "maxReplicas": most},
    }


@pytest.mark.row("high availability", "replicas by label type: controller 2, without failure tolerance 1; server 2")
async def test_replicas_follow_the_type_of_the_component(cluster: Cluster) -> None:
    async with of_seed(cluster):
        found = {}
        for tolerance in (None, "", "node", "zone"):
            await place(cluster, **({} if tolerance is None else {"tolerance": tolerance}))
            kinds = ("Deployment", "StatefulSet")
            made = [workload(kind, 3, of_type=each) for kind in kinds for each in ("controller", "server")]
            found[tolerance] = [await replicas_of(cluster, each) for each in made]

    assert found == {None: [2, 2] * 2, "": [1, 2] * 2, "node": [2, 2] * 2, "zone": [2, 2] * 2}


@pytest.mark.row("high availability", "replicas: 0 stays, and every number without label type")
@pytest.mark.row("high availability", "replicas: annotation replicas overrides them; it must be a number")
async def test_replicas_that_the_type_does_not_decide(cluster: Cluster) -> None:
    async with of_seed(cluster):
        await place(cluster, tolerance="node")
        asleep = await replicas_of(cluster, workload(replicas=0, of_type="server"))
        plain = await replicas_of(cluster, workload(replicas=1))
        chosen = await replicas_of(cluster, workload(of_type="server", annotations={REPLICAS: "5"}))
        with pytest.raises(Invalid, match="must be a number of replicas"):
            await created(cluster, workload(of_type="server", annotations={REPLICAS: "many"}))

    assert (asleep, plain, chosen) == (0, 1, 5)


@pytest.mark.row("high availability", "replicas: a HorizontalPodAutoscaler's number is only raised")
async def test_scaled_workloads_lose_no_replicas(cluster: Cluster) -> None:
    await place(cluster, consider="false")
    await cluster.admin.create(scaler(1, 9))
    try:
        async with of_seed(cluster):
            await place(cluster, tolerance="node")
            await nodes(cluster, "a", "b")
            found = [await created(cluster, workload(replicas=each, of_type="server")) for each in (1, 4)]
    finally:
        await cluster.admin.delete(HORIZONTAL_POD_AUTOSCALER, "w", NAMESPACE)

    assert [each["replicas"] for each in found] == [2, 4]
    assert [constraints(each)[HOST] for each in found] == [("DoNotSchedule", 3)] * 2, "as many as it may have"


@pytest.mark.row("high availability", "HorizontalPodAutoscaler: minReplicas is raised, maxReplicas with it")
async def test_limits_of_an_autoscaler_are_raised(cluster: Cluster) -> None:
    async with of_seed(cluster):
        await place(cluster, tolerance="zone")
        limits = [
            await created(cluster, scaler(least, most, **labels))
            for least, most, labels in ((1, 1, {TYPE: "server"}), (3, 5, {TYPE: "server"}), (1, 1, {}))
        ]

    assert [(each["minReplicas"], each["maxReplicas"]) for each in limits] == [(2, 2), (3, 5), (1, 1)]


@pytest.mark.row(
    "high availability", "zones: pods run in those of the namespace, with failure-tolerance-type or zone-pinning"
)
async def test_pods_run_in_the_zones_of_their_namespace(cluster: Cluster) -> None:
    required = {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": "disk", "operator": "Exists"}, {"key": ZONE, "operator": "Exists"}]},
            {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["z"]}]},
        ]
    }
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    found = []
    async with of_seed(cluster):
        for annotations in ({}, {"pinning": "false"}, {"tolerance": ""}, {"pinning": "true"}):
            await place(cluster, zones="b,a", **annotations)
            found.append(zones(await created(cluster, workload("StatefulSet"))))
        replaced = zones(await created(cluster, workload(affinity=affinity)))
        await place(cluster, tolerance="zone")
        without = zones(await created(cluster, workload()))

    pinned = {"key": ZONE, "operator": "In", "values": ["a", "b"]}
    assert found == [[], [], [[pinned]], [[pinned]]]
    assert replaced == [[{"key": "disk", "operator": "Exists"}, pinned], [pinned]]
    assert without == []


_SOFT = ("ScheduleAnyway", None)


@pytest.mark.row(
    "high availability", "spreading over nodes: strict with failure tolerance or host-spread, and two nodes"
)
@pytest.mark.row(
    "high availability", "spreading over zones: with two zones, without failure-tolerance-type or with zone"
)
@pytest.mark.parametrize(
    ("annotations", "replicas", "wanted"),
    [
        ({}, 1, {}),
        ({}, 2, {HOST: _SOFT}),
        ({"tolerance": ""}, 2, {HOST: _SOFT}),
        ({"tolerance": "node"}, 2, {HOST: ("DoNotSchedule", 2)}),
        ({"tolerance": "node"}, 5, {HOST: ("DoNotSchedule", 3)}),
        ({"zones": "a"}, 2, {HOST: _SOFT}),
        ({"zones": "a,b,c"}, 2, {HOST: _SOFT, ZONE: ("DoNotSchedule", 2)}),
        ({"zones": "a,b,c", "tolerance": "node"}, 4, {HOST: ("DoNotSchedule", 3)}),
        ({"zones": "a,b,c", "tolerance": ""}, 4, {HOST: _SOFT}),
        ({"zones": "a,b,c", "tolerance": "zone"}, 5, {HOST: ("DoNotSchedule", 3), ZONE: ("DoNotSchedule", 3)}),
    ],
)
async def test_pods_are_spread(
    cluster: Cluster, annotations: dict[str, str], replicas: int, wanted: dict[str, tuple[str, int | None]]
) -> None:
    async with of_seed(cluster):
        await nodes(cluster, "a", "b")
        await place(cluster, **annotations)
        found = await created(cluster, workload(replicas=replicas))

    assert constraints(found) == wanted


@pytest.mark.row(
    "high availability", "spreading over nodes: never strict in a cluster of one node; annotation host-spread"
)
async def test_one_node_takes_all_pods(cluster: Cluster) -> None:
    spread = {HOST_SPREAD: "true"}
    async with of_seed(cluster):
        await place(cluster)
        await nodes(cluster, "a")
        alone = await created(cluster, workload(replicas=2, annotations=spread))
        await nodes(cluster, "b")
        strict = await created(cluster, workload(replicas=2, annotations=spread))
        plain = await created(cluster, workload(replicas=2))

    assert constraints(alone) == {HOST: _SOFT}
    assert constraints(strict) == {HOST: ("DoNotSchedule", 2)}
    assert constraints(plain) == {HOST: _SOFT}


@pytest.mark.row(
    "high availability", "spreading counts pods of one revision of a Deployment, or of a StatefulSet's selector"
)
async def test_each_kind_counts_its_own_pods(cluster: Cluster) -> None:
    given = [
        {"maxSkew": 2, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
        for key in (HOST, "rack")
    ]
    async with of_seed(cluster):
        await place(cluster)
        found = [
            await created(cluster, workload(kind, 2, topologySpreadConstraints=given))
            for kind in ("Deployment", "StatefulSet")
        ]

    deployment, stateful_set = (each["template"]["spec"]["topologySpreadConstraints"] for each in found)
    assert [each["topologyKey"] for each in deployment] == ["rack", HOST], "those of other keys stay"
    assert deployment[1]["labelSelector"] == {"matchLabels": {"app": "w", "role": "r"}}
    assert deployment[1]["matchLabelKeys"] == ["pod-template-hash"]
    assert stateful_set[1]["labelSelector"] == {"matchLabels": {"app": "w"}}
    assert "matchLabelKeys" not in stateful_set[1]


@pytest.mark.row(
    "high availability", "tolerations: pods leave a node that does not answer after 60 s, if they say no time"
)
async def test_pods_leave_a_lost_node(cluster: Cluster) -> None:
    own = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
    async with of_seed(cluster):
        await place(cluster)
        found = [
            (await created(cluster, workload(tolerations=given)))["template"]["spec"]["tolerations"]
            for given in ([], [own], [{"operator": "Exists"}])
        ]

    unreachable = {**own, "key": "node.kubernetes.io/unreachable", "tolerationSeconds": 60}
    assert found == [[{**own, "tolerationSeconds": 60}, unreachable], [own, unreachable], [{"operator": "Exists"}]]


@pytest.mark.row(
    "high availability", "a workload that exists gets it with its next change, and a second change adds nothing"
)
async def test_a_change_of_a_workload_is_reviewed(cluster: Cluster) -> None:
    await place(cluster, consider="false")
    made = await cluster.admin.create(workload(of_type="server"))
    try:
        async with of_seed(cluster):
            await place(cluster, tolerance="node", zones="a")
            versions = []
            for number in range(2):
                made = await cluster.admin.patch(
                    DEPLOYMENT, "w", NAMESPACE, {"metadata": {"labels": {"n": str(number)}}}
                )
                versions.append(made["metadata"]["generation"])
    finally:
        await cluster.admin.delete(DEPLOYMENT, "w", NAMESPACE)

    assert made["spec"]["replicas"] == 2
    assert zones(made["spec"]) == [[{"key": ZONE, "operator": "In", "values": ["a"]}]]
    assert versions == [2, 2]


@pytest.mark.row("high availability", "only in namespaces with label consider; not for workloads with label skip")
@pytest.mark.row("high availability", "without resource manager these workloads are held, and no others")
async def test_other_workloads_stay(cluster: Cluster) -> None:
    skipped = workload(of_type="server", labels={SKIP: ""})
    async with of_seed(cluster):
        await place(cluster, tolerance="node")
        skips = await replicas_of(cluster, skipped)
        await place(cluster, consider="false", tolerance="node")
        unmarked = await replicas_of(cluster, workload(of_type="server"))
    await place(cluster, tolerance="node")

    assert (skips, unmarked) == (1, 1)
    with pytest.raises(ApiError, match="failed calling webhook"):
        await created(cluster, workload(of_type="server"))
    assert await replicas_of(cluster, skipped) == 1


@pytest.mark.row("high availability", "workloads of the gardenlet and members of etcd stay as their manifests are")
async def test_own_workloads_are_not_rolled(cluster: Cluster) -> None:
    """The gardenlet knows how available its components must be. A second opinion would restart all control planes."""
    found = {}
    async with of_seed(cluster):
        await nodes(cluster, "a", "b", "c")
        await place(cluster, tolerance="zone", zones="a,b,c")
        for given in OBJECTS:
            if given["kind"] in ("Deployment", "StatefulSet"):
                found[given["metadata"]["name"]] = given["spec"], await created(cluster, given)

    assert {"etcd-main", "kube-apiserver", "gardener-resource-manager"} <= set(found)
    for name, (given, made) in found.items():
        pods = [each["template"]["spec"] for each in (given, made)]
        for field in ("affinity", "topologySpreadConstraints", "tolerations"):
            before, after = (each.get(field) for each in pods)
            assert after == before, f"{field} of {name}"
        assert made["replicas"] == given["replicas"], name


@pytest.mark.row(
    "high availability", "a workload of a ManagedResource is written once, although the webhook changes it"
)
async def test_the_resource_manager_does_not_write_against_its_webhook(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, replace = [], KubeClient.replace

    async def counting(self: KubeClient, obj: Object, *, manager: str, dry_run: bool = False) -> Object:
        if not dry_run:
            written.append(obj["kind"])
        return await replace(self, obj, manager=manager, dry_run=dry_run)

    monkeypatch.setattr(KubeClient, "replace", counting)
    for definition in crds("seed"):
        if definition["spec"]["names"]["kind"] == MANAGED_RESOURCE.kind:
            await cluster.admin.apply(definition, manager="test")
    manager = Manager(cluster.admin, NAMESPACE)
    async with of_seed(cluster):
        await place(cluster, tolerance="node", zones="a")
        await manager.start()
        try:
            await manager.write(workload(of_type="server"))
            await manager.runs()
            await manager.reconciled()
            made = await cluster.admin.get(DEPLOYMENT, "w", NAMESPACE)
        finally:
            await manager.stop()

    assert made["spec"]["replicas"] == 2
    assert written == []
    await cluster.admin.delete(DEPLOYMENT, "w", NAMESPACE)


@pytest.mark.row("high availability", "Shoot: workloads of ManagedResources in kube-system, by zones of system pools")
async def test_system_components_of_a_shoot_are_spread(cluster: Cluster) -> None:
    pools: list[Object] = [
        {"zones": ["b"]},
        {"zones": ["a"], "systemComponents": {"allow": True}},
        {"zones": ["c"], "systemComponents": {"allow": False}},
    ]
    [namespace] = shoot_system.namespaces(zones_of_system_pools(pools))
    async with cluster.of_shoot():
        await cluster.admin.apply(namespace, manager="gardenlet")
        await until(lambda: is_reviewed(cluster, workload(labels=MANAGED), "kube-system"), 30)
        given = [workload(of_type="controller", labels=labels) for labels in (MANAGED, {}, {**MANAGED, SKIP: ""})]
        managed, *others = [await created(cluster, each, "kube-system") for each in given]

    assert managed["replicas"] == 2
    assert constraints(managed) == {HOST: _SOFT, ZONE: ("DoNotSchedule", 2)}
    assert zones(managed) == [], "owners may have nodes in other zones"
    [toleration] = managed["template"]["spec"]["tolerations"]
    assert (toleration["key"], toleration["tolerationSeconds"]) == ("node.kubernetes.io/not-ready", 7)
    assert [each["replicas"] for each in others] == [1, 1]


def test_a_shoot_without_workers_has_no_such_namespace() -> None:
    [namespace] = shoot_system.namespaces(None)
    assert CONSIDER not in namespace["metadata"]["labels"]
    [without_zones] = shoot_system.namespaces([])
    assert without_zones["metadata"]["labels"][CONSIDER] == "true"
    assert ZONES not in without_zones["metadata"]["annotations"]
