"""The objects of a gardenlet that another gardenlet deploys: its Secrets, and the values of its chart.

Pure functions of the ManagedSeed, of its identity, and of the configuration of the gardenlet that deploys it.
"""

from __future__ import annotations

import base64
import io
import json
import os
import tarfile
from collections.abc import Mapping
from datetime import timedelta
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import workers
from api import images
from api.constants import GARDEN_NAMESPACE
from api.decisions import managed_seeds
from api.resources import Object
from kube.kubeconfig import Endpoint
from workers.gardenlet.charts import Chart
from workers.gardenlet.config import GardenletConfig

NAME = "gardenlet"
"""Name of the release, and of the Deployment."""
BOOTSTRAP_SECRET, CODEC_SECRET, TLS_SECRET = "gardenlet-bootstrap", "gardenlet-codec-key", "gardenlet-temporal-tls"
_CHART = Path(workers.__file__).parents[1] / "charts" / "gardenlet"
_OF_THE_PARENT = {
    "garden_client_connection",
    "seed_client_connection",
    "seed_config",
    "temporal",
    "resources",
    "health",
    "leader_election",
    "identity",
}
"""Parts of the parent's configuration that are for the parent alone: files, ports, and its own Seed."""
_ADDRESS, _AUTHORITY = "gardenClusterAddress", "gardenClusterCACert"


class BadConfiguration(Exception):
    """The gardenlet would not accept its configuration; the text says why."""


def chart(managed_seed: Mapping[str, Any], parent: GardenletConfig) -> Chart:
    """The chart of the new gardenlet with its values. Raises BadConfiguration."""
    return Chart(release=NAME, namespace=GARDEN_NAMESPACE, values=values(managed_seed, parent), raw=_archive())


def values(managed_seed: Mapping[str, Any], parent: GardenletConfig) -> Object:
    """Values of the chart. Raises BadConfiguration."""
    deployment = (managed_seed["spec"].get("gardenlet") or {}).get("deployment") or {}
    template = managed_seeds.seed_template(managed_seed)
    tls = parent.temporal.tls
    made: Object = {
        "image": _image(deployment.get("image") or {}),
        "garden": {"bootstrapKubeconfigSecret": BOOTSTRAP_SECRET},
        "temporal": {
            "address": parent.temporal.address,
            "namespace": parent.temporal.namespace,
            "codecKeySecret": CODEC_SECRET,
            "tls": {"enabled": tls is not None, "secret": TLS_SECRET, "serverName": (tls and tls.server_name) or ""},
        },
        "seedConfig": {"metadata": template["metadata"], "spec": template["spec"]},
        "config": configuration(managed_seed, parent),
    }
    return {**made, **deployment_values(deployment)}


def deployment_values(deployment: Mapping[str, Any]) -> Object:
    """Values of the chart by the fields of a GardenletDeployment, without the image."""
    made: Object = {
        "replicas": deployment.get("replicaCount", 2),
        "revisionHistoryLimit": deployment.get("revisionHistoryLimit", 2),
        "healthProbes": deployment.get("enableHealthProbes", True),
    }
    for name in ("serviceAccountName", "resources", "podLabels", "podAnnotations", "env", "tolerations"):
        if deployment.get(name):
            made[name] = deployment[name]
    for name, field in (("additionalVolumes", "volumes"), ("additionalVolumeMounts", "volumeMounts")):
        if deployment.get(name):
            made[field] = deployment[name]
    return made


def _image(wanted: Mapping[str, Any]) -> Object:
    """The image of the deployment; by default that of this gardenlet's version."""
    named = {key: wanted[key] for key in ("repository", "tag") if wanted.get(key)}
    image = named if wanted.get("repository") else {"ref": wanted.get("ref") or images.GARDENER}
    return {**image, "pullPolicy": wanted.get("pullPolicy") or "IfNotPresent"}


def configuration(managed_seed: Mapping[str, Any], parent: GardenletConfig) -> Object:
    """Configuration that the chart merges over its own. Raises BadConfiguration."""
    gardenlet = managed_seed["spec"].get("gardenlet") or {}
    own = managed_seeds.gardenlet_config(managed_seed)
    for name in ("apiVersion", "kind", "seedConfig"):
        own.pop(name, None)
    connection = {**(own.pop("gardenClientConnection", None) or {})}
    for name in (_ADDRESS, _AUTHORITY):
        connection.pop(name, None)
    if connection:
        own["gardenClientConnection"] = connection
    inherited = parent.model_dump(by_alias=True, exclude_unset=True, exclude=_OF_THE_PARENT)
    found = merged(_plain(inherited) if gardenlet.get("mergeWithParent", True) else {}, own)
    template = managed_seeds.seed_template(managed_seed)
    check(found, template, "spec.gardenlet.config")
    return found


def check(config: Object, template: Mapping[str, Any], path: str) -> None:
    """Raises BadConfiguration if a gardenlet of this version would end with a fault when it reads this.

    ``template``: its Seed. ``path``: field that the message names.
    """
    by_the_chart: Object = {
        "gardenClientConnection": {"bootstrapKubeconfig": "/b", "kubeconfigSecret": {"name": "a", "namespace": "b"}},
        "seedConfig": {"metadata": template["metadata"], "spec": template["spec"]},
        "temporal": {"address": "a", "codecKeyFile": "/b"},
    }
    try:
        GardenletConfig.model_validate(merged(by_the_chart, config))
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}"
            for each in error.errors(include_url=False, include_input=False, include_context=False)
        ]
        raise BadConfiguration(f"{path}: {'; '.join(faults[:5])}") from None


def secrets(managed_seed: Mapping[str, Any], identity: Mapping[str, str], endpoint: Endpoint) -> list[Object]:
    """Secrets of the new gardenlet.

    ``identity``: data of the Secret that the garden made, in base64. ``endpoint``: the garden's.
    """
    kubeconfig = _encoded(bootstrap_kubeconfig(managed_seed, identity, endpoint))
    found = [
        _secret(BOOTSTRAP_SECRET, {"kubeconfig": kubeconfig}),
        _secret(CODEC_SECRET, {"key": identity[managed_seeds.CODEC_KEY]}),
    ]
    names = (managed_seeds.TLS_CERTIFICATE, managed_seeds.TLS_KEY, managed_seeds.TLS_AUTHORITIES)
    if all(identity.get(each) for each in names):
        found.append(_secret(TLS_SECRET, {each: identity[each] for each in names}))
    return found


def bootstrap_kubeconfig(managed_seed: Mapping[str, Any], identity: Mapping[str, str], endpoint: Endpoint) -> str:
    """Kubeconfig with the garden's address, and the bootstrap token while the gardenlet needs one."""
    connection = managed_seeds.gardenlet_config(managed_seed).get("gardenClientConnection") or {}
    address, authority = connection.get(_ADDRESS), connection.get(_AUTHORITY)
    cluster: Object = {"server": address or endpoint.server}
    if authority:
        cluster["certificate-authority-data"] = authority
    elif endpoint.ca:
        cluster["certificate-authority-data"] = _encoded(endpoint.ca)
    if endpoint.tls_server_name and not address:
        cluster["tls-server-name"] = endpoint.tls_server_name
    token = base64.b64decode(identity.get(managed_seeds.BOOTSTRAP_TOKEN, "")).decode()
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "garden",
            "clusters": [{"name": "garden", "cluster": cluster}],
            "users": [{"name": NAME, "user": {"token": token} if token else {}}],
            "contexts": [{"name": "garden", "context": {"cluster": "garden", "user": NAME}}],
        },
        sort_keys=True,
    )


def _secret(name: str, data: Mapping[str, str]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": GARDEN_NAMESPACE},
        "type": "Opaque",
        "data": dict(data),
    }


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> Object:
    """Both mappings; a value of ``above`` wins, and mappings are merged."""
    both = dict(below)
    for key, value in above.items():
        known = both.get(key)
        both[key] = merged(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return both


def _plain(value: Any) -> Any:
    """A configuration's values as YAML holds them; durations in seconds, which all fields accept."""
    match value:
        case Mapping():
            return {key: _plain(each) for key, each in value.items() if each is not None}
        case list() | tuple():
            return [_plain(each) for each in value]
        case timedelta():
            return value.total_seconds()
        case Path():
            return str(value)
        case Enum():
            return value.value
    return value


@cache
def _archive() -> str:
    """The chart as a compressed archive, in base64."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as archive:
        for directory, folders, files in os.walk(_CHART, followlinks=True):
            folders.sort()
            for name in sorted(files):
                path = Path(directory) / name
                info = tarfile.TarInfo(str(Path(NAME) / path.relative_to(_CHART)))
                content = path.read_bytes()
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return base64.b64encode(buffer.getvalue()).decode()
