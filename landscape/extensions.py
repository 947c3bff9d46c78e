"""provider-local in a landscape: the garden has its chart, and the gardenlets of the seeds install it.

The landscape does what an operator does elsewhere: it registers the extension, and writes the Secrets into each seed
with which the extension connects to Temporal.
"""

import asyncio
import gzip
import io
import tarfile
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from api.decisions.conditions import find_condition
from api.decisions.extension_charts import namespace_of
from api.network_policies import TO_BLOCKED, allowed
from api.resources import CONTROLLER_INSTALLATION, NAMESPACE
from kube.client import KubeClient, Object
from landscape.cluster import Credentials
from landscape.code import ROOMS, code_digest
from landscape.errors import LandscapeError
from landscape.files import locked, write_if_changed
from landscape.kernel import has_ipv6
from landscape.kube import apply, connected
from landscape.pki import TemporalAuthority
from landscape.plan import ClusterPlan, Plan
from landscape.processes import Processes
from landscape.waiting import until
from workers.lib.codec import derived_keys

PROVIDER_LOCAL = "provider-local"
CHARTS = Path(__file__).parents[1] / "charts"
_OLD_NAMESPACE = "extension-provider-local"
"""Namespace of provider-local's account in landscapes of earlier versions, where it was a process of the machine."""
_READY_SECONDS = 180
_GOOD = {"Valid": "True", "Installed": "True", "Healthy": "True", "Progressing": "False"}


def packaged(chart: Path) -> bytes:
    """The compressed archive of a chart; the same files always give the same bytes."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as archive,
    ):
        for path, name in _files(chart, chart.name):
            content = path.read_bytes()
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _files(directory: Path, name: str) -> Iterator[tuple[Path, str]]:
    """Files below a directory, with their names in the archive; links to directories are followed."""
    for path in sorted(directory.iterdir()):
        if path.is_dir():
            yield from _files(path, f"{name}/{path.name}")
        else:
            yield path, f"{name}/{path.name}"


def controller_deployment(plan: Plan) -> Object:
    """The chart of provider-local with the values for all seeds."""
    values: dict[str, Any] = {
        "temporal": {"address": plan.temporal_address},
        "replicas": 1,
        "registryMirror": {"url": plan.registry_endpoint, "caBundle": Credentials.of(plan.cloud).ca.pem},
        "seeds": {
            seed.name: {
                "loadBalancerIp": seed.address,
                "furtherLoadBalancerIps": [plan.further_address(seed.name)],
                **({"ipv6LoadBalancerIps": plan.gateway_addresses(seed.name)} if has_ipv6() else {}),
            }
            for seed in plan.seeds
        },
        # The image has the same tag in all versions.
        "podAnnotations": {"checksum/code": code_digest(*ROOMS)},
    }
    if plan.closed:
        # It uses Temporal, the garden, the DNS server and the users of the object store.
        values["podLabels"] = allowed(TO_BLOCKED)
    if plan.shared_key.exists():
        values["temporal"]["sharedKeySecret"] = "provider-local-shared-key"
    return {
        "apiVersion": "core.gardener.cloud/v1",
        "kind": "ControllerDeployment",
        "metadata": {"name": PROVIDER_LOCAL},
        "helm": {"rawChart": b64encode(packaged(CHARTS / PROVIDER_LOCAL)).decode(), "values": values},
    }


async def installed_as(plan: Plan, seed: ClusterPlan) -> str:
    """Name of the ControllerInstallation of provider-local for a seed, once the garden has created it."""
    fields = f"spec.registrationRef.name={PROVIDER_LOCAL},spec.seedRef.name={seed.name}"
    names: list[str] = []
    async with connected(plan.kubeconfig("garden")) as client:

        async def is_there() -> bool:
            found = await client.list(CONTROLLER_INSTALLATION, fields=fields)
            names[:] = [each["metadata"]["name"] for each in found if "deletionTimestamp" not in each["metadata"]]
            return bool(names)

        await until(is_there, f"the ControllerInstallation of {PROVIDER_LOCAL} for {seed.name}", _READY_SECONDS)
    return names[0]


async def identify(client: KubeClient, plan: Plan, seed: str, installation: str) -> None:
    """Give provider-local of a seed its identity for Temporal: Secrets that its pods mount. ``client``: of the seed."""
    namespace = namespace_of(installation)
    await apply(client, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    await apply(client, *(_secret(name, namespace, files) for name, files in secrets(plan, seed).items()))


def secrets(plan: Plan, seed: str) -> dict[str, dict[str, Path]]:
    """Secrets with provider-local's identity for Temporal, by the names that its chart has: files by their keys."""
    authority = TemporalAuthority(plan.temporal_authority)
    pair = authority.for_extension(PROVIDER_LOCAL, seed)
    key = plan.derived_key(f"{seed}-{PROVIDER_LOCAL}")
    with locked(key):
        write_if_changed(key, derived_keys(plan.codec_key, provider_local=seed), mode=0o600)
    shared = {"provider-local-shared-key": {"key": plan.shared_key}} if plan.shared_key.exists() else {}
    return {
        "provider-local-codec-key": {"key": key},
        "provider-local-temporal-tls": {
            "ca.crt": authority.of_servers,
            "tls.crt": pair.certificate,
            "tls.key": pair.key,
        },
        **shared,
    }


async def end_earlier(plan: Plan, seed: ClusterPlan, processes: Processes) -> None:
    """End provider-local of an earlier version, which ran on the machine, and revoke its access to the seed.

    It must end before this version's gardenlet starts: it would report that the gardenlet's Secrets lack keys.
    Extension objects wait from its end until the pod is ready.
    """
    access = seed.directory / f"{PROVIDER_LOCAL}.kubeconfig"
    running = processes.find(f"{seed.name}/{PROVIDER_LOCAL}")
    if running is None and not access.exists():
        return
    if running is not None:
        await asyncio.to_thread(processes.stop, [running])
    async with connected(plan.kubeconfig(seed.name)) as client:
        await client.delete(NAMESPACE, _OLD_NAMESPACE)
    (plan.configs / f"{seed.name}-{PROVIDER_LOCAL}.yaml").unlink(missing_ok=True)
    access.unlink(missing_ok=True)  # last: it says that something of the earlier version is left


async def offer(plan: Plan) -> None:
    """Apply the ControllerDeployment of provider-local, which gardenlets install by its ControllerRegistration."""
    async with connected(plan.kubeconfig("garden")) as client:
        await apply(client, controller_deployment(plan))


async def install(plan: Plan, seed: ClusterPlan) -> None:
    """Write the Secrets that the pods of provider-local wait for, and wait until the gardenlet has installed it."""
    name = await installed_as(plan, seed)
    async with connected(plan.kubeconfig(seed.name)) as client:
        await identify(client, plan, seed.name, name)
    async with connected(plan.kubeconfig("garden")) as client:

        async def is_ready() -> bool:
            return _is_good(await client.find(CONTROLLER_INSTALLATION, name))

        await until(is_ready, f"ControllerInstallation {name}", _READY_SECONDS)


async def state(plan: Plan) -> dict[str, dict[str, Any]]:
    """The extensions of all seeds, for ``gardener landscape status``; none if the garden does not answer."""
    try:
        async with connected(plan.kubeconfig("garden")) as client:
            found = await client.list(CONTROLLER_INSTALLATION)
    except (LandscapeError, OSError):
        return {}
    return {
        each["metadata"]["name"]: {
            "seed": (each["spec"].get("seedRef") or {}).get("name", ""),
            "ready": _is_good(each),
            "conditions": {type_: find_condition(each, type_).get("status", "Unknown") for type_ in _GOOD},
        }
        for each in found
    }


def _is_good(installation: Object | None) -> bool:
    return all(find_condition(installation, type_).get("status") == status for type_, status in _GOOD.items())


def _secret(name: str, namespace: str, files: dict[str, Path]) -> Object:
    data = {key: b64encode(file.read_bytes()).decode() for key, file in files.items()}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}
