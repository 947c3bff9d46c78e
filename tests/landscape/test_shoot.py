"""A whole life of a Shoot with two machines: ordered, watched, used, deleted.

The tests run in the order in which they stand. The last one deletes the Shoot that tests share, so tests/conftest.py
runs this file after all others that use it.
"""

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.api.sdk.v1 import WorkflowMetadata

from api.contracts.operations import ShootRef, lifecycle_id
from landscape import binaries
from landscape.progress import Progress
from tests import image_registries
from tests.landscape import bastions, monitoring, pods
from tests.landscape.conftest import BIN, Landscape
from tests.landscape.pods import PROBE
from tests.landscape.shoots import DELETION, Shoot, background, eventually, refused, temporal, temporal_command

pytestmark = [pytest.mark.landscape, pytest.mark.timeout(180, func_only=True)]

CONDITIONS = ("APIServerAvailable", "ControlPlaneHealthy", "EveryNodeReady", "SystemComponentsHealthy")


# What its owner sees in the garden


def test_the_table_of_shoots_shows_the_state_of_the_shoot(shoot: Shoot) -> None:
    header, row = shoot.garden("get", "shoots", shoot.name).splitlines()

    told = dict(zip(re.split(r"\s{2,}", header), re.split(r"\s{2,}", row), strict=True))
    live = shoot.get()
    assert told["NAME"] == shoot.name
    assert told["K8S VERSION"] == live["spec"]["kubernetes"]["version"]
    assert told["LAST OPERATION"] == live["status"]["lastOperation"]["type"]
    assert (told["STATE"], told["PROGRESS"]) == ("Succeeded", "100")


@pytest.mark.parametrize("condition", CONDITIONS)
def test_one_can_wait_for_its_conditions(shoot: Shoot, condition: str) -> None:
    shoot.garden("wait", f"--for=condition={condition}", f"shoot/{shoot.name}", "--timeout=60s", timeout=70)


def test_the_table_calls_it_healthy_once_all_conditions_hold(shoot: Shoot) -> None:
    healthy = "jsonpath={.metadata.labels.shoot\\.gardener\\.cloud/status}=healthy"
    shoot.garden("wait", f"--for={healthy}", f"shoot/{shoot.name}", "--timeout=60s", timeout=70)


def test_describe_shows_its_conditions_and_what_happened(shoot: Shoot) -> None:
    described = shoot.garden("describe", "shoot", shoot.name)

    for expected in (*CONDITIONS, "SchedulingSuccessful", "Reconciling", "Reconciled"):
        assert expected in described, described


def test_the_status_names_the_seed_and_the_technical_id(shoot: Shoot) -> None:
    live = shoot.get()
    status = live["status"]

    assert status["technicalID"] == shoot.technical_id
    assert status["uid"] == live["metadata"]["uid"]
    assert status["seedName"] == live["spec"]["seedName"]
    assert status["observedGeneration"] == live["metadata"]["generation"]
    assert status["lastOperation"]["description"] == "Shoot cluster has been successfully reconciled."
    assert not status.get("lastErrors")
    assert status["hibernated"] is False
    addresses = {each["name"]: each["url"] for each in status["advertisedAddresses"]}
    internal, external = shoot.host_names
    assert (addresses["internal"], addresses["external"]) == (f"https://{internal}", f"https://{external}")
    assert {"nodes", "pods", "services"} <= status["networking"].keys()


def test_an_owner_who_applies_the_same_again_changes_nothing(shoot: Shoot) -> None:
    generation = shoot.get()["metadata"]["generation"]

    shoot.apply(shoot.manifest(machines=2))

    assert shoot.get()["metadata"]["generation"] == generation


# Its flow


def test_the_flow_is_shown_task_by_task(shoot: Shoot) -> None:
    creation = shoot.flows()[-1]["workflowId"]
    flow = shoot.flow(creation)

    assert (flow["operation"], flow["state"], flow["percent"]) == ("Create", "Completed", 100)
    tasks = {task["name"]: task for task in flow["tasks"]}
    assert {task["state"] for task in tasks.values()} <= {"Finished", "Skipped"}
    for name, task in tasks.items():
        for before in task["after"]:
            if task["started"] and tasks[before]["ended"]:
                assert task["started"] >= tasks[before]["ended"], f"{name} began before {before} was done"
    text = shoot.gardener("flow", "show", shoot.reference, "--id", creation)
    assert "Completed" in text
    assert "✔ wait_worker" in text


def test_workflows_are_found_by_search_attributes_and_have_summaries(shoot: Shoot) -> None:
    """The Temporal UI shows these texts in its list and on a workflow's page."""
    lifecycle = lifecycle_id(ShootRef(namespace="garden-local", name=shoot.name, uid=shoot.uid))
    of_shoot = f'GardenerProject = "local" AND GardenerShoot = "{shoot.reference}"'

    assert lifecycle in _workflows(shoot.landscape, f'{of_shoot} AND ExecutionStatus = "Running"')
    creation = shoot.flows()[-1]["workflowId"]
    of_operation = f'{of_shoot} AND GardenerSeed = "{shoot.seed}" AND GardenerOperation = "Create"'
    assert creation in _workflows(shoot.landscape, of_operation)


async def test_workflows_show_the_tree_of_tasks(shoot: Shoot) -> None:
    client = await temporal(shoot.landscape)
    ref = ShootRef(namespace="garden-local", name=shoot.name, uid=shoot.uid)

    async def details(workflow_id: str) -> str:
        handle = client.get_workflow_handle(workflow_id)
        metadata: WorkflowMetadata = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
        return metadata.current_details

    creation = await details(shoot.flows()[-1]["workflowId"])
    assert "wait_worker" in creation
    assert "cleanup_secrets" in creation
    assert "the last operation succeeded" in await details(lifecycle_id(ref))


# The cluster in use


@pytest.fixture(scope="module")
def workload(shoot: Shoot) -> dict[str, str]:
    """Two replicas of a web server, one on each machine: machine by pod."""
    shoot.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": _workload()}))
    shoot.kubectl("-n", PROBE, "rollout", "status", "deployment/web", "--timeout=90s")
    pods = json.loads(shoot.kubectl("-n", PROBE, "get", "pods", "-l", "app=web", "-o", "json"))["items"]
    return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods}


def test_both_machines_are_ready_and_have_the_version_of_the_shoot(shoot: Shoot) -> None:
    nodes = json.loads(shoot.kubectl("get", "nodes", "-o", "json"))["items"]

    assert len(nodes) == 2
    for node in nodes:
        assert {each["type"]: each["status"] for each in node["status"]["conditions"]}["Ready"] == "True"
        assert node["status"]["nodeInfo"]["kubeletVersion"] == f"v{shoot.get()['spec']['kubernetes']['version']}"


def test_two_replicas_run_on_two_machines(workload: dict[str, str]) -> None:
    assert len(workload) == 2
    assert len(set(workload.values())) == 2


def test_a_service_is_reached_by_name_from_a_pod(shoot: Shoot, workload: dict[str, str]) -> None:
    pod, url = next(iter(workload)), f"http://web.{PROBE}.svc.cluster.local/"
    eventually(lambda: _answers(shoot, pod, url), "the node knows the Service", 30)
    seen = {_get(shoot, pod, url) for _ in range(20)}

    assert seen <= workload.keys()
    assert seen, "no pod answered"


def test_pods_of_each_machine_reach_pods_of_the_other_one(shoot: Shoot, workload: dict[str, str]) -> None:
    one, other = workload
    address = {pod: _pod(shoot, pod)["status"]["podIP"] for pod in workload}

    assert _get(shoot, one, f"http://{address[other]}:8080/") == other
    assert _get(shoot, other, f"http://{address[one]}:8080/") == one


def test_a_pod_reaches_its_api_server_and_is_known_there(shoot: Shoot, workload: dict[str, str]) -> None:
    code = (
        "import json, ssl, urllib.request as r; d='/var/run/secrets/kubernetes.io/serviceaccount/';"
        "q=r.Request('https://kubernetes.default.svc.cluster.local/api/v1/namespaces/default',"
        " headers={'Authorization': 'Bearer ' + open(d+'token').read()});"
        "r.urlopen(q, context=ssl.create_default_context(cafile=d+'ca.crt'), timeout=10)"
    )
    answer = refused(*shoot.argv("-n", PROBE, "exec", next(iter(workload)), "--", "python3", "-c", code))

    assert "403" in answer, "authenticated by its token, and may do nothing"


def test_logs_are_read_through_the_tunnel(shoot: Shoot, workload: dict[str, str]) -> None:
    pod = next(iter(workload))
    _get(shoot, pod, "http://localhost:8080/seen-in-the-log")

    log = shoot.kubectl("-n", PROBE, "logs", pod)
    assert "GET /seen-in-the-log" in log


@pytest.mark.parametrize("service", ["kubelet", "containerd", "gardener-node-agent"])
def test_logs_of_a_nodes_services_are_read_through_the_tunnel(shoot: Shoot, service: str) -> None:
    node = min(name for pool in shoot.nodes().values() for name in pool)

    log = shoot.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/logs/?query={service}&tailLines=3")
    lines = [line for line in log.splitlines() if not line.startswith("--")]
    assert 1 <= len(lines) <= 3, log
    of_service = {"gardener-node-agent": r"(python3?|gardener)"}.get(service, service)
    assert all(re.search(rf" {of_service}[\w.-]*\[\d+\]: ", line) for line in lines), log


def test_commands_run_in_pods_of_both_machines(shoot: Shoot, workload: dict[str, str]) -> None:
    for pod in workload:
        assert shoot.kubectl("-n", PROBE, "exec", "-i", pod, "--", "cat", stdin=f"to {pod}") == f"to {pod}"


def test_ports_are_forwarded_through_the_tunnel(shoot: Shoot, workload: dict[str, str]) -> None:
    pod = next(iter(workload))
    argv = shoot.argv("-n", PROBE, "port-forward", f"pod/{pod}", ":8080", "--address=127.0.0.1")
    with background(argv) as forwarding:
        assert forwarding.stdout is not None
        told = forwarding.stdout.readline()
        port = re.search(r"127\.0\.0\.1:(\d+) -> 8080", told)
        assert port, told
        with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/", timeout=20) as answer:
            assert answer.read().decode().strip() == pod


def test_a_pod_runs_an_image_of_its_owner_that_only_the_registry_has(shoot: Shoot, own_image: str) -> None:
    container = {"name": "own", "image": own_image, "imagePullPolicy": "Always"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "own"}, "spec": {"containers": [container]}}
    shoot.kubectl("apply", "-f", "-", stdin=json.dumps(pod))

    shoot.kubectl("wait", "--for=condition=Ready", "pod/own", "--timeout=60s")

    events = shoot.kubectl("get", "events", "--field-selector=involvedObject.name=own", "-o", "jsonpath={..message}")
    assert f'Successfully pulled image "{own_image}"' in events
    shoot.kubectl("delete", "pod", "own", "--grace-period=1")


def test_a_pod_whose_image_is_in_no_registry_says_so(shoot: Shoot) -> None:
    """The node asks the mirror, and then the registry in the name of the image."""
    container = {"name": "none", "image": "registry.example.org/team/none:v1"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "none"}, "spec": {"containers": [container]}}
    shoot.kubectl("apply", "-f", "-", stdin=json.dumps(pod))

    reason = "{.status.containerStatuses[0].state.waiting.reason}"
    asked = ("get", "pod", "none", "-o", f"jsonpath={reason}")
    eventually(lambda: shoot.kubectl(*asked) in ("ErrImagePull", "ImagePullBackOff"), "the pull has failed", 60)
    shoot.kubectl("delete", "pod", "none", "--grace-period=0", "--force")


@pytest.fixture(scope="module")
def own_image(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Name of an image that no node has. It is pushed after a push of it was killed."""
    name = "registry.example.org/team/app:v1"
    archive = image_registries.archive(tmp_path_factory.mktemp("image"), name, Path(_pause()))
    push = (landscape.bin / "gardener", "landscape", "push", "--name", landscape.name, str(archive))
    with subprocess.Popen(push, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as killed:
        while not list(_pushing(landscape)) and killed.poll() is None:
            time.sleep(0.01)  # the clock of a poll: a push takes a second
        killed.kill()
        told = killed.communicate()[0]
    assert killed.returncode == -signal.SIGKILL, f"the push was not killed: {told}"
    eventually(lambda: not list(_pushing(landscape)), "the end of the registry with its push", 30)
    assert landscape.gardener("push", str(archive)).split() == [name]
    assert not list(_pushing(landscape))
    return name


def _pause() -> str:
    return asyncio.run(binaries.ensure((binaries.pause(),), Progress(quiet=True)))["pause"]


def _pushing(landscape: Landscape) -> Iterator[str]:
    """Processes that take images for the landscape's registry."""
    config = str(landscape.directory / "registry/push.yaml").encode()
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if config in each.read_bytes().split(b"\0"):
                yield each.parent.name


@pytest.mark.parametrize("what", ["nodes", "pods"])
def test_top_shows_the_used_resources(shoot: Shoot, workload: dict[str, str], what: str) -> None:
    names = set(workload) if what == "pods" else set(workload.values())

    def shown() -> set[str]:
        done = shoot.kubectl("get", "--raw", f"/apis/metrics.k8s.io/v1beta1/{what}")
        return names & {each["metadata"]["name"] for each in json.loads(done)["items"]}

    eventually(lambda: shown() == names, f"metrics of {names}", 90)
    table = shoot.kubectl("top", what, *(["-n", PROBE] if what == "pods" else []))
    for name in names:
        assert re.search(rf"^{name} +\d+m .*Mi", table, re.MULTILINE), table


def test_an_admission_webhook_in_a_pod_is_called(shoot: Shoot, webhook: None) -> None:
    """By the API server in the seed, through the tunnel, by the name of its Service."""
    config_map = ("create", "configmap", "--namespace", PROBE)

    answer = refused(*shoot.argv(*config_map, "forbidden"))
    assert pods.DENIAL in answer

    shoot.kubectl(*config_map, "permitted")
    assert shoot.kubectl("-n", PROBE, "get", "configmap", "permitted", "-o", "name")


@pytest.fixture(scope="module")
def webhook(shoot: Shoot, workload: dict[str, str]) -> None:
    """It stays when the Shoot is deleted, as webhooks of users do."""
    shoot.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": pods.webhook()}))
    shoot.kubectl("-n", PROBE, "rollout", "status", "deployment/webhook", "--timeout=90s")


# What its owner sees of the control plane


def test_prometheus_scrapes_the_whole_control_plane_and_all_nodes(shoot: Shoot) -> None:
    host, words = monitoring.access(shoot)

    def whole() -> bool:
        try:
            _, found = monitoring.ask(shoot, "up == 1", host, words)
        except OSError:  # it may come up after the creation of the Shoot
            return False
        return {each["metric"]["job"] for each in found} >= monitoring.JOBS

    eventually(whole, "everything is seen", 90)
    nodes = shoot.kubectl("get", "nodes", "-o", "name").split()
    for measured in ("container_memory_working_set_bytes", "node_cpu_seconds_total"):
        _, found = monitoring.ask(shoot, f"count({measured}) by (node)", host, words)
        assert {f"node/{each['metric']['node']}" for each in found} == set(nodes), measured
    _, found = monitoring.ask(shoot, "probe_success", host, words)
    reached = {each["metric"]["job"]: each["value"][1] for each in found}
    assert reached == {"blackbox-apiserver": "1", "blackbox-exporter-k8s-service-check": "1"}


def test_the_monitoring_needs_its_password(shoot: Shoot) -> None:
    host, _ = monitoring.access(shoot)
    assert monitoring.ask(shoot, "up", host, "Basic YWRtaW46YWRtaW4=") == (401, None)


def test_a_new_password_is_taken_and_the_old_one_refused(shoot: Shoot) -> None:
    host, old = monitoring.access(shoot)
    before = _last_rotation(shoot)
    shoot.garden("annotate", "shoot", shoot.name, "gardener.cloud/operation=rotate-observability-credentials")

    eventually(lambda: _last_rotation(shoot) != before, "the rotation is done", 120)
    _, new = monitoring.access(shoot)
    assert new != old
    assert monitoring.ask(shoot, "up", host, old) == (401, None)
    # It knows the password before it has read its data.
    eventually(lambda: monitoring.ask(shoot, "up", host, new)[0] == 200, "what was measured is there again", 60)


def _last_rotation(shoot: Shoot) -> str:
    """When the newest one was completed; empty if none was."""
    rotation = (shoot.get()["status"].get("credentials") or {}).get("rotation") or {}
    return str((rotation.get("observability") or {}).get("lastCompletionTime", ""))


# The end


def test_a_shoot_without_confirmation_is_not_deleted(landscape: Landscape, shoot: Shoot) -> None:
    answer = refused(
        BIN / "kubectl",
        f"--kubeconfig={landscape.directory}/kubeconfigs/garden.yaml",
        *("-n", "garden-local", "delete", "shoot", shoot.name),
    )

    assert "confirmation.gardener.cloud/deletion" in answer
    assert "deletionTimestamp" not in shoot.get()["metadata"]


@pytest.fixture(scope="module")
def with_bastion(shoot: Shoot) -> Shoot:
    bastions.order(shoot)
    bastions.hold(shoot)
    return shoot


def test_deletion_waits_for_bastions(with_bastion: Shoot) -> None:
    shoot = with_bastion
    shoot.delete(wait=False)
    state = "--for=jsonpath={.status.lastOperation.state}=Error"
    shoot.garden("wait", state, f"shoot/{shoot.name}", "--timeout=30s")
    description = shoot.get()["status"]["lastOperation"]["description"]
    assert f"Bastions exist: {bastions.NAME}; they must be deleted first" in description
    assert "infrastructure" in shoot.control_plane("get", "infrastructures", "-o", "name")


@pytest.mark.timeout(DELETION + 60, func_only=True)
def test_deletion_leaves_nothing_anywhere(with_bastion: Shoot) -> None:
    """A user's webhook, which no pod would answer any more, is still in there."""
    shoot = with_bastion
    before = shoot.traces()
    for place in ("garden", "seed", "cloud", "dns", "bucket"):
        assert before[place], f"nothing found in {place}: this test would see nothing otherwise"
    uid = shoot.uid

    bastions.let_go(shoot)
    shoot.garden("wait", "--for=delete", f"shoot/{shoot.name}", f"--timeout={DELETION}s", timeout=DELETION + 10)

    assert not bastions.names(shoot, bastions.KIND)
    assert shoot.traces() == {place: [] for place in before}
    newest = shoot.flows()[0]
    assert (newest["operation"], newest["state"]) == ("Delete", "Completed")
    query = f'WorkflowId STARTS_WITH "shoot/{shoot.reference}/{uid}" AND ExecutionStatus = "Running"'
    eventually(lambda: not _workflows(shoot.landscape, query), "its workflows have ended", 20)
    assert "Deleted Shoot cluster" in shoot.garden("get", "events", f"--field-selector=involvedObject.uid={uid}")


def _workflows(landscape: Landscape, query: str) -> list[str]:
    """Ids, by the command line of Temporal."""
    listed = temporal_command(landscape, "workflow", "list", "--query", query)
    return [each["execution"]["workflowId"] for each in json.loads(listed or "[]")]


def _get(shoot: Shoot, pod: str, url: str) -> str:
    """Answer that a pod gets from a URL; the status where it is not 200."""
    code = (
        "import urllib.request as r, urllib.error as e\n"
        f"try: print(r.urlopen({url!r}, timeout=10).read().decode().strip())\n"
        "except e.HTTPError as x: print(x.code)"
    )
    return shoot.kubectl("-n", PROBE, "exec", pod, "--", "python3", "-c", code).strip()


def _answers(shoot: Shoot, pod: str, url: str) -> bool:
    """Whether a pod reaches a server there."""
    code = f"import urllib.request as r; r.urlopen({url!r}, timeout=10)"
    argv = shoot.argv("-n", PROBE, "exec", pod, "--", "python3", "-c", code)
    return subprocess.run(argv, capture_output=True, timeout=60, check=False).returncode == 0


def _pod(shoot: Shoot, name: str) -> dict:
    return json.loads(shoot.kubectl("-n", PROBE, "get", "pod", name, "-o", "json"))


def _workload() -> list[dict]:
    return [pods.namespace(), pods.python("web", 2, pods.WEB), pods.service("web", 80)]
