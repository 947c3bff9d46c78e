"""The process as its pod runs it: configuration in, a working manager out."""

import asyncio
import json
import logging
import os
import signal

import pytest
import yaml
from pydantic import TypeAdapter, ValidationError

from api.resources import CONFIG_MAP
from tests.unit.kube.waiting import until
from tests.unit.resource_manager.conftest import CONFIG_MAPS, SECRETS
from workers.lib.runtime import ConfigError, adjust_logging
from workers.resource_manager import connections, process, run
from workers.resource_manager.config import ClientConnection, Duration, ResourceManagerConfig
from workers.resource_manager.webhooks import Webhooks

LEASES = "/apis/coordination.k8s.io/v1/leases"


def kubeconfig(server, **user):
    return json.dumps(
        {
            "current-context": "a",
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            "clusters": [{"name": "a", "cluster": {"server": server.url}}],
            "users": [{"name": "a", "user": user}],
        }
    )


@pytest.fixture
def config(source, target, tmp_path):
    (tmp_path / "source").write_text(kubeconfig(source, token="s"))
    (tmp_path / "target").write_text(kubeconfig(target, tokenFile="token"))
    return {
        "sourceClientConnection": {"kubeconfig": str(tmp_path / "source"), "namespaces": ["shoot--dev--one"]},
        "targetClientConnection": {"kubeconfig": str(tmp_path / "target")},
        "server": {"health": {"address": "127.0.0.1", "port": 0}},
        "controllers": {
            "clusterID": "seed-1",
            "managedResource": {"syncPeriod": "1h"},
            "garbageCollector": {"enabled": True, "syncPeriod": "12h"},
            "csrApprover": {"enabled": True, "machineNamespace": "shoot--dev--one"},
            "tokenRequestor": {"enabled": True, "class": "shoot"},
        },
    }


async def test_it_waits_for_its_token_then_works_then_stops_on_a_signal(config, manager, tmp_path):
    """The kubelet may mount the token after the pod started; to crash until then would cost a minute of backoff."""
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(config))
    manager.write({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "kube-system"}})
    process = asyncio.create_task(run(str(path)))
    await asyncio.sleep(0.1)
    assert manager.target.requests == []

    (tmp_path / "token").write_text("t")
    await manager.applied()
    assert manager.live(CONFIG_MAPS, "x") is not None
    manager.source.put(
        SECRETS,
        {
            "kind": "Secret",
            "metadata": {
                "name": "access",
                "namespace": "shoot--dev--one",
                "labels": {
                    "resources.gardener.cloud/purpose": "token-requestor",
                    "resources.gardener.cloud/class": "shoot",
                },
                "annotations": {
                    "serviceaccount.resources.gardener.cloud/name": "x",
                    "serviceaccount.resources.gardener.cloud/namespace": "kube-system",
                },
            },
        },
    )
    await until(lambda: "data" in manager.source.find(SECRETS, "access", "shoot--dev--one"))

    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(process, 10)


async def test_a_leader_releases_its_lease_when_it_ends(config, manager, tmp_path, monkeypatch):
    """Otherwise the next one would lead 15 s later, for example after each hibernation."""

    async def serve(webhooks):
        webhooks.ready.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Webhooks, "run", serve)
    election = {"leaderElect": True, "resourceNamespace": "shoot--dev--one"}
    (tmp_path / "config.yaml").write_text(json.dumps(config | {"leaderElection": election}))
    (tmp_path / "token").write_text("t")
    running = asyncio.create_task(run(str(tmp_path / "config.yaml")))

    def lease():
        return manager.source.find(LEASES, "gardener-resource-manager", "shoot--dev--one")

    await until(lambda: lease() is not None)
    assert lease()["spec"]["holderIdentity"]
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(running, 10)
    assert lease()["spec"]["holderIdentity"] == ""


def test_contents_of_secrets_are_not_kept_in_memory():
    """A seed's resource manager watches the Secrets of all control planes."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "a"},
        "type": "Opaque",
        "data": {"key": "a2V5"},
    }
    assert process._without_secrets(secret) == {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"key": "value"}}
    assert process._without_secrets(config_map) == config_map


async def test_a_field_it_does_not_know_is_refused(config, tmp_path):
    config["controllers"]["managedResource"]["sincPeriod"] = "1m"
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(config))

    with pytest.raises(ConfigError, match=r"controllers\.managedResource\.sincPeriod"):
        await run(str(path))


async def test_an_empty_kubeconfig_is_waited_out(target, tmp_path, monkeypatch):
    looks = []

    def look(path):
        looks.append(path)
        return missing(path)

    async def another_look():
        seen = len(looks)
        await until(lambda: len(looks) > seen + 1)  # the next one may have begun already

    missing = connections._missing
    monkeypatch.setattr(connections, "_missing", look)
    monkeypatch.setattr(connections, "_LOOK_AGAIN", 0.01)
    config = ResourceManagerConfig.model_validate(
        {"targetClientConnection": {"kubeconfig": str(tmp_path / "kubeconfig")}}
    )
    connection = config.target_client_connection
    assert connection
    waiting = asyncio.create_task(connections.target_client(connection))
    await another_look()
    (tmp_path / "kubeconfig").write_text("")
    await another_look()
    (tmp_path / "kubeconfig").write_text(kubeconfig(target))
    await another_look()
    assert not waiting.done()
    (tmp_path / "kubeconfig").write_text(kubeconfig(target, token="t"))

    client = await asyncio.wait_for(waiting, 5)
    assert client.endpoint.token == "t"
    await client.close()


@pytest.mark.parametrize("text", ["", "1", "1d", "1h 5m", "-1m", "h"])
def test_invalid_periods_are_refused(text):
    with pytest.raises(ValidationError):
        TypeAdapter(Duration).validate_python(text)


EXAMPLE = """
apiVersion: resourcemanager.config.gardener.cloud/v1alpha1
kind: ResourceManagerConfiguration
sourceClientConnection: {qps: 100, burst: 130, cacheResyncPeriod: 24h}
leaderElection:
  leaderElect: true
  leaseDuration: 15s
  renewDeadline: 10s
  retryPeriod: 2s
  resourceLock: leases
  resourceName: gardener-resource-manager
  resourceNamespace: default
logLevel: info
logFormat: text
server:
  webhooks: {port: 9449, tls: {serverCertDir: example/resource-manager}}
  healthProbes: {port: 8081}
  metrics: {port: 8080}
debugging: {enableProfiling: false, enableContentionProfiling: false}
controllers:
  garbageCollector: {enabled: true, syncPeriod: 1h}
  health: {concurrentSyncs: 5, syncPeriod: 1m}
  kubeletCSRApprover: {enabled: true, concurrentSyncs: 1, machineNamespace: shoot--foo--bar}
  managedResources: {concurrentSyncs: 5, syncPeriod: 1m, alwaysUpdate: true, managedByLabelValue: gardener}
  networkPolicy:
    enabled: true
    concurrentSyncs: 5
    ingressControllerSelector: {namespace: default, podSelector: {matchLabels: {foo: bar}}}
  nodeCriticalComponents: {enabled: true, concurrentSyncs: 5, backoff: 10s}
  tokenRequestor: {enabled: true, concurrentSyncs: 5}
webhooks:
  crdDeletionProtection: {enabled: true}
  endpointSliceHints: {enabled: true}
  kubernetesServiceHost: {enabled: true, host: api.example.com}
  projectedTokenMount: {enabled: true, expirationSeconds: 43200}
  seccompProfile: {enabled: false}
"""


@pytest.mark.row("configuration", "Gardener's fields are read; a feature that is lacking is named in a warning")
def test_gardeners_configuration_is_read():
    """Operators bring such a file from Gardener; its field names differ between versions."""
    config = ResourceManagerConfig.model_validate(yaml.safe_load(EXAMPLE))

    assert config.server.health.port == 8081
    assert config.controllers.managed_resource.always_update is True
    assert config.controllers.csr_approver.machine_namespace == "shoot--foo--bar"
    assert [each.split(" ")[0] for each in config.lacking()] == [
        "webhooks.crdDeletionProtection",
    ]
    assert config.webhooks.kubernetes_service_host.host == "api.example.com"
    assert config.webhooks.projected_token_mount.expiration_seconds == 43200


@pytest.mark.row(
    "configuration", "podKubeAPIServerLoadBalancing: not served, since control planes have no Istio; a warning says so"
)
def test_load_balancing_by_istio_is_not_served():
    config = ResourceManagerConfig.model_validate({"webhooks": {"podKubeAPIServerLoadBalancing": {"enabled": True}}})
    [text] = config.lacking()
    assert text.startswith("webhooks.podKubeAPIServerLoadBalancing is enabled and not served: there is no Istio")


@pytest.mark.row("configuration", "podSchedulerName: needs schedulerName")
def test_a_scheduler_without_a_name_is_refused():
    with pytest.raises(ValidationError, match="schedulerName must be set"):
        ResourceManagerConfig.model_validate({"webhooks": {"podSchedulerName": {"enabled": True}}})


@pytest.mark.row("configuration", "sourceClientConnection, targetClientConnection: namespace restriction")
def test_the_older_name_of_namespaces_is_read():
    config = ResourceManagerConfig.model_validate({"sourceClientConnection": {"namespace": "shoot--a--b"}})
    assert config.source_client_connection.namespaces == ("shoot--a--b",)
    with pytest.raises(ValidationError, match="both set"):
        ResourceManagerConfig.model_validate({"sourceClientConnection": {"namespace": "a", "namespaces": ["b"]}})


@pytest.mark.row("configuration", "sourceClientConnection, targetClientConnection: qps and burst")
async def test_requests_beyond_the_burst_are_paced(target, tmp_path):
    (tmp_path / "kubeconfig").write_text(target.kubeconfig())
    connection = ClientConnection(kubeconfig=tmp_path / "kubeconfig", qps=20, burst=3)
    async with connections.source_client(connection) as client:
        begin = asyncio.get_running_loop().time()
        await asyncio.gather(*(client.list(CONFIG_MAP, "a") for _ in range(7)))
        took = asyncio.get_running_loop().time() - begin

    assert took >= 4 / 20


@pytest.mark.row("configuration", "logLevel, logFormat")
def test_logs_have_the_wanted_level_and_format(monkeypatch):
    root = logging.Logger("root of this test")
    root.addHandler(logging.StreamHandler())
    monkeypatch.setattr(logging, "getLogger", lambda *_: root)
    config = ResourceManagerConfig.model_validate({"logLevel": "error", "logFormat": "text"})
    adjust_logging(config.log_level, config.log_format)

    record = logging.LogRecord("n", logging.ERROR, "", 0, "said", (), None)
    assert root.level == logging.ERROR
    assert root.handlers[0].format(record).endswith("ERROR n: said")
