"""The front door of the landscape's garden: two Envoys that share the garden's address and port."""

import hashlib
import sys
from pathlib import Path

from landscape.cluster import Credentials
from landscape.files import write_if_changed
from landscape.plan import SUBRESOURCES_PORTS, Plan
from landscape.processes import ProcessSpec
from workers import front_door
from workers.front_door import AccessLog, FrontDoorConfig, FrontDoorServer, Identity, Servers
from workers.lib.runtime import HealthConfig

_HEALTH_PORTS = (2724, 2725)
"""Ports of each Envoy's /ready and /stats/prometheus, at the central address."""


def processes(plan: Plan) -> list[ProcessSpec]:
    """Write the files of both Envoys; returns the processes. The kernel gives each connection to one of them."""
    return [_process(plan, number, port) for number, port in enumerate(_HEALTH_PORTS, start=1)]


def _process(plan: Plan, number: int, health_port: int) -> ProcessSpec:
    name = f"front-door-{number}"
    config = configuration(plan, name, health_port)
    files = front_door.files(config)
    for file, content in files.items():
        write_if_changed(config.directory / file, content)
    envoy = str(Path(sys.executable).parent / "envoy")
    path = str(config.directory / front_door.CONFIG_FILE)
    argv = (envoy, "-c", path, "--log-level", "warn", "--concurrency", "1", "--disable-hot-restart")
    # ``up`` restarts the process if its configuration has changed.
    version = hashlib.sha256("".join(files.values()).encode()).hexdigest()[:12]
    return ProcessSpec(f"garden/{name}", argv, plan.garden.netns, {"GARDENER_VERSION": version})


def configuration(plan: Plan, name: str, health_port: int) -> FrontDoorConfig:
    garden, credentials = plan.garden, Credentials.of(plan.garden)
    authority = credentials.ca.files.certificate
    certificate = credentials.ca.issue("front-door", "front-door", names=garden.server_names)
    identity = credentials.front_proxy_ca.issue("front-door-identity", "front-proxy-client")
    return FrontDoorConfig(
        server=FrontDoorServer(
            address=garden.address,
            certificate_file=certificate.certificate,
            private_key_file=certificate.key,
            client_ca_file=authority,
        ),
        api_server=Servers(
            endpoints=(f"{garden.api_server_address}:6443",),
            ca_file=authority,
            server_name="kubernetes.default.svc",
        ),
        subresources=Servers(
            endpoints=tuple(f"{garden.address}:{port}" for port in SUBRESOURCES_PORTS),
            ca_file=authority,
            server_name=garden.address,
        ),
        request_header_identity=Identity(certificate_file=identity.certificate, private_key_file=identity.key),
        directory=garden.directory / name,
        access_log=AccessLog.ERRORS,  # nothing rotates the logs of a landscape
        admin_socket=garden.run_directory / f"{name}.sock",
        health=HealthConfig(address=garden.address, port=health_port),
    )
