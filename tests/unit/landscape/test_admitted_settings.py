"""A real API server starts with settings that admission admits, and does not start with those that it refuses."""

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from activities.components import apiserver
from activities.secrets import crypto
from activities.secrets.crypto import KeyAlgorithm
from api.core.v1beta1.shoot import Shoot
from api.kubernetes_versions import release
from api.validation.shoot import check_shoot
from landscape.binaries import KUBERNETES_VERSION, etcd, kubernetes
from tests.api_servers import free_port, process
from tests.unit.api.shoots import changed, complete

pytestmark = [
    pytest.mark.binaries,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        not (kubernetes().complete and etcd().complete), reason="Kubernetes and etcd are not compiled on this machine"
    ),
]


def pod_security(**fields: Any) -> dict[str, Any]:
    config = {
        "apiVersion": "pod-security.admission.config.k8s.io/v1",
        "kind": "PodSecurityConfiguration",
        "defaults": {"enforce": "baseline", "enforce-version": "latest"},
        "exemptions": {"namespaces": ["kube-system"]},
    }
    return {"name": "PodSecurity", "config": config | fields}


_RATE_LIMIT = {
    "name": "EventRateLimit",
    "config": {
        "apiVersion": "eventratelimit.admission.k8s.io/v1alpha1",
        "kind": "Configuration",
        "limits": [{"type": "Namespace", "qps": 50, "burst": 100}],
    },
}


def all_apis() -> dict[str, bool]:
    found = release(KUBERNETES_VERSION)
    assert found is not None
    return dict.fromkeys(sorted(found.api_versions), True)


def all_plugins() -> list[dict[str, Any]]:
    """All plugins with which a cluster can work; each is admitted without a configuration."""
    found = release(KUBERNETES_VERSION)
    assert found is not None
    left_out = {"AlwaysDeny", "EventRateLimit", "ImagePolicyWebhook", "NamespaceExists"}
    return [{"name": name} for name in sorted(found.admission_plugins - left_out)]


def refusal(settings: dict[str, Any]) -> str:
    obj = changed(complete(bound=True).to_wire(), "spec.kubernetes.version", KUBERNETES_VERSION)
    return str(check_shoot(Shoot.of(changed(obj, "spec.kubernetes.kubeAPIServer", settings)), None, "local") or "")


def admission_configuration(settings: dict[str, Any]) -> str:
    names = {field.name: field.name for field in dataclasses.fields(apiserver.Secrets)}
    server = apiserver.ApiServer(
        namespace="shoot--local--demo",
        version=KUBERNETES_VERSION,
        replicas=1,
        external_hostname="api.example.org",
        issuer="https://issuer.test",
        service_cidrs=["10.0.0.0/24"],
        secrets=apiserver.Secrets(**names),
        settings=settings,
    )
    return apiserver._admission_files(server)["admission-configuration.yaml"]


async def started(directory: Path, settings: dict[str, Any]) -> str:
    """The last error of an API server with these settings; empty if it gets ready."""
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    (directory / "sa.key").write_bytes(crypto.private_pem(crypto.new_key(KeyAlgorithm.P256)))
    (directory / "admission.yaml").write_text(admission_configuration(settings))
    flags = {f"--{name}={value}" for name, value in apiserver._admission_flags(settings).items()}
    if gates := settings.get("featureGates"):
        flags.add(f"--feature-gates={apiserver._pairs(gates)}")
    if apis := settings.get("runtimeConfig"):
        flags.add(f"--runtime-config={apiserver._pairs(apis)}")
    port = free_port()
    async with process(
        directory,
        *(etcd().directory / "etcd", "--data-dir", directory / "data", "--name", "one", "--log-level", "error"),
        *("--listen-client-urls", client, "--advertise-client-urls", client, "--unsafe-no-fsync"),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}"),
    ):
        server = await asyncio.create_subprocess_exec(
            *(kubernetes().directory / "kube-apiserver", "--etcd-servers", client, "--secure-port", str(port)),
            *("--bind-address", "127.0.0.1", "--cert-dir", str(directory / "certs"), "--allow-privileged=true"),
            *("--service-account-issuer", "https://issuer.test", "--service-account-key-file", directory / "sa.key"),
            *("--service-account-signing-key-file", directory / "sa.key", "--service-cluster-ip-range", "10.0.0.0/24"),
            *("--authorization-mode", "RBAC", "--admission-control-config-file", directory / "admission.yaml"),
            *sorted(flags),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            return await asyncio.wait_for(_outcome(server, port), 120)
        finally:
            if server.returncode is None:
                server.kill()
            await server.wait()


async def _outcome(server: asyncio.subprocess.Process, port: int) -> str:
    assert server.stderr is not None
    reading = asyncio.create_task(server.stderr.read())
    while not reading.done():
        if await _is_ready(port):
            reading.cancel()
            return ""
        await asyncio.wait([reading], timeout=0.5)
    return reading.result().decode().strip().splitlines()[-1]


async def _is_ready(port: int) -> bool:
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session,
            session.get(f"https://127.0.0.1:{port}/readyz", ssl=False) as answer,
        ):
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


GATES = {"APIResponseCompression": False, "StorageVersionAPI": True}
STORAGE_VERSIONS = {"internal.apiserver.k8s.io/v1alpha1": True}


@pytest.mark.parametrize(
    "settings",
    [
        {"runtimeConfig": all_apis()},
        {"admissionPlugins": all_plugins()},
        {"admissionPlugins": [pod_security(), _RATE_LIMIT, {"name": "DefaultIngressClass", "disabled": True}]},
        {
            "featureGates": GATES,
            "runtimeConfig": {"api/beta": True, **STORAGE_VERSIONS},
        },
        {"featureGates": {"AllAlpha": True, "GenericWorkload": True}, "runtimeConfig": {"api/all": True}},
    ],
    ids=("all APIs", "all plugins", "configured plugins", "gates", "all alpha gates"),
)
async def test_an_api_server_starts_with_what_admission_admits(tmp_path: Path, settings: dict[str, Any]):
    assert not refusal(settings)
    assert not await started(tmp_path, settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"featureGates": {"FooBar": True}},
        {"featureGates": {"AllAlpha": True}},
        {"featureGates": {"APIServerIdentity": False}},
        {"runtimeConfig": {"foo/v1": True}},
        {"runtimeConfig": {"apps/v2": True}},
        {"admissionPlugins": [{"name": "NoSuchPlugin"}]},
        {"admissionPlugins": [{"name": "EventRateLimit"}]},
        {"admissionPlugins": [pod_security(defaults={"enforce": "strict"})]},
        {"admissionPlugins": [pod_security(other=1)]},
        {"admissionPlugins": [pod_security(kind="Other")]},
    ],
    ids=json.dumps,
)
async def test_an_api_server_ends_with_what_admission_refuses(tmp_path: Path, settings: dict[str, Any]):
    """A rule that refuses what works would be as wrong as one that is missing."""
    assert refusal(settings)
    assert await started(tmp_path, settings)
