"""Trusted and signing authorities in each phase of a rotation, read from the objects that the activities apply."""

import base64
import binascii
import copy
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from aiohttp import web
from cryptography import x509
from cryptography.x509.oid import NameOID

from activities.secrets.configs import GenericTokenKubeconfig
from activities.secrets.manager import SecretsManager
from activities.seed.autoscaler import AutoscalerActivities
from activities.seed.etcd import EtcdActivities
from activities.seed.operating_system_configs import OperatingSystemConfigActivities
from activities.seed.vpa import VpaActivities
from tests.pages import check_table
from tests.unit.components.test_control_plane import (
    NAMESPACE,
    SECRETS,
    SHOOT,
    TASK,
    World,
    generate_shared,
    in_shoot,
    world,
)

__all__ = ["in_shoot", "world"]

PHASES = ("", "Preparing", "Completing")
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n?", re.DOTALL)
_CODED = re.compile(rb"[A-Za-z0-9+/]{100,}={0,2}")

_WORDS = {"trusts": "trusts", "signs": "signs by"}

Found = dict[tuple[str, str], set[str]]
"""By verb and authority: the generations."""


class Phases:
    """One control plane, built again in each phase."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.shoot.answer = _allow
        etcd, nodes = EtcdActivities(world.clusters), OperatingSystemConfigActivities(world.clusters)
        control_plane, system = world.control_plane, world.system
        machines = {"metadata": {"name": TASK.shoot.name, "namespace": NAMESPACE}}
        world.seed.put("/apis/extensions.gardener.cloud/v1alpha1/workers", machines)
        self.activities = {
            "etcd": etcd.deploy_etcds,
            "kube-apiserver": control_plane.deploy_apiserver,
            "kube-controller-manager": control_plane.deploy_kube_controller_manager,
            "kube-scheduler": control_plane.deploy_scheduler,
            "gardener-resource-manager, and the API server at it": control_plane.deploy_resource_manager,
            "machine-controller-manager": control_plane.deploy_machine_controller_manager,
            "cluster-autoscaler": AutoscalerActivities(world.clusters).deploy_autoscaler,
            "vpn-seed-server": control_plane.deploy_vpn_server,
            "gardenlet, at the API server": control_plane.deploy_gardener_access,
            "vpn-shoot": system.deploy_vpn_shoot,
            "kube-proxy": system.deploy_kube_proxy,
            "metrics-server, and the API server at it": system.deploy_metrics_server,
            "vertical pod autoscaler, and the API server at it": VpaActivities(world.clusters).deploy_vpa,
            "nodes": nodes.deploy_os_configs,
        }
        self.old: frozenset[str] = frozenset()

    async def found(self, phase: str) -> dict[str, Found]:
        manager = await self._secrets(phase)
        if not phase:
            self.old = frozenset(name for name in self._names() if name.startswith("ca"))
        found, kept = {}, set(manager.generated)
        for who, activity in self.activities.items():
            before = set(self.world.seed.objects)
            kept |= set((await activity(TASK)).secrets)
            made = [place for place in set(self.world.seed.objects) - before if not self._managed(place)]
            found[who] = self._read([copy.deepcopy(self.world.seed.objects[place]) for place in made])
            for path, namespace, name in made:
                if path != SECRETS or not name.startswith("shoot-access-"):
                    self.world.seed.remove(path, name, namespace)
        await (await SecretsManager.load(self.world.clusters.seed, namespace=NAMESPACE)).cleanup(kept)
        return found

    async def _secrets(self, phase: str) -> SecretsManager:
        """As ``init_secrets`` makes them."""
        state = {"phase": phase, "lastInitiationTime": "2026-11-21T10:00:00Z"}
        rotation = {"certificateAuthorities": state} if phase else {}
        machine = {"type": "local", "image": {"name": "local", "version": "1.0.0"}, "architecture": "amd64"}
        pool = {"name": "w", "machine": machine, "cri": {"name": "containerd"}, "minimum": 1, "maximum": 2}
        provider = {"type": "local", "workers": [pool]}
        kubernetes = {**SHOOT["spec"]["kubernetes"], "verticalPodAutoscaler": {"enabled": True}}
        shoot = {
            **SHOOT,
            "spec": {**SHOOT["spec"], "provider": provider, "kubernetes": kubernetes},
            "status": {"credentials": {"rotation": rotation}},
        }
        self.world.pin(shoot)
        await self.world.clusters.forget_shoot(NAMESPACE)
        manager = await SecretsManager.of_shoot(self.world.clusters.seed, NAMESPACE, shoot)
        await generate_shared(manager)
        bundle = manager.get("ca").data["bundle.crt"]
        await manager.generate(GenericTokenKubeconfig("generic-token-kubeconfig", "https://kube-apiserver", bundle))
        return manager

    def _managed(self, place: Any) -> bool:
        labels = self.world.seed.objects[place]["metadata"].get("labels") or {}
        return labels.get("managed-by") == "secrets-manager"

    def _names(self) -> Iterator[str]:
        return (name for path, _, name in self.world.seed.objects if path == SECRETS)

    def _read(self, objects: list[Any]) -> Found:
        found: Found = defaultdict(set)
        for name in _mounted(objects):
            held = self.world.secret(name).get("data") or {}  # none while a token is still to come
            data = {key: base64.b64decode(value) for key, value in held.items()}
            if "ca.key" in data:
                self._note(found, "signs", data["ca.crt"])
            elif "tls.key" not in data:
                for value in data.values():
                    self._note(found, "trusts", value)
        for text in _strings(objects):
            self._note(found, "trusts", text.encode())
        return found

    def _note(self, found: Found, verb: str, content: bytes) -> None:
        """Authorities whose certificates these bytes have, in whatever coding."""
        for pem in _PEM.findall(content):
            certificate = x509.load_pem_x509_certificate(pem)
            name = str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
            if certificate.subject == certificate.issuer:
                label = (self.world.secret(name) or {})["metadata"]["labels"]["name"]
                found[verb, label].add("old" if name in self.old else "new")
        for coded in _CODED.findall(content):
            try:
                self._note(found, verb, base64.b64decode(coded))
            except binascii.Error:
                continue


def _allow(request: web.Request) -> web.Response | None:
    reviews = request.path.endswith("/selfsubjectaccessreviews")
    return web.json_response({"status": {"allowed": True}}, status=201) if reviews else None


def _mounted(value: Any) -> Iterator[str]:
    """Names of Secrets that volumes and references name."""
    if isinstance(value, dict):
        for key, each in value.items():
            if isinstance(each, dict) and (key == "secret" or key.endswith("SecretRef")):
                yield from (each[name] for name in ("secretName", "name") if name in each)
            yield from _mounted(each)
    elif isinstance(value, list):
        for each in value:
            yield from _mounted(each)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)


async def test_the_documents_list_the_trusted_authorities_of_each_component(world: World, in_shoot: Any) -> None:
    """Clients trust both authorities while a rotation is prepared; new certificates are signed by the new one."""
    phases = Phases(world)
    seen = [await phases.found(phase) for phase in PHASES]
    rows = []
    for who in phases.activities:
        assert seen[0][who].keys() == seen[1][who].keys() == seen[2][who].keys(), who
        for verb, authority in sorted(seen[0][who], key=lambda each: (each[0] == "signs", each[1])):
            times = [" and ".join(sorted(each[who][verb, authority], reverse=True)) for each in seen]
            assert times == (["old", "new", "new"] if verb == "signs" else ["old", "old and new", "new"]), who
            rows.append((who, f"{_WORDS[verb]} `{authority}`", *times))
    assert len(rows) > 15
    check_table("credentials.md", "trust", rows)
