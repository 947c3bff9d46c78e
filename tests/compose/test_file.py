"""``docker-compose.yaml`` as a file: what it names exists, and its containers are confined."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from api import images
from workers.admission.process import AdmissionConfig
from workers.cli.worker import _PROCESSES
from workers.codec_server import CodecServerConfig
from workers.controller_manager.process import ControllerManagerConfig
from workers.lib.runtime import load_config
from workers.scheduler import SchedulerConfig
from workers.setup import SetupConfig

FILE = Path(__file__).parents[2] / "docker-compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == images.GARDENER}
CONFIGS: dict[str, Any] = {
    "admission": AdmissionConfig,
    "codec-server": CodecServerConfig,
    "controller-manager": ControllerManagerConfig,
    "scheduler": SchedulerConfig,
    "setup": SetupConfig,
}
TEMPORAL = {"frontend", "internal-frontend", "history", "matching", "worker"}
KEYS = "--task-token-keys=/etc/temporal/tls/task-tokens.keys"


def test_its_images_are_those_that_we_make():
    made = {images.GARDENER, images.POSTGRESQL, images.TEMPORAL, images.TEMPORAL_ADMIN_TOOLS}
    assert {service["image"] for service in SERVICES.values()} == made


def test_each_service_of_temporal_is_a_container_of_its_own():
    commands = {name: service["command"] for name, service in SERVICES.items() if service["image"] == images.TEMPORAL}
    further = {"frontend": [KEYS, "--oidc-config=${TEMPORAL_OIDC_CONFIG:-}"], "internal-frontend": [KEYS]}
    assert commands == {f"temporal-{name}": [f"--service={name}", *further.get(name, [])] for name in TEMPORAL}


def test_each_worker_runs_a_process_that_exists_with_its_configuration():
    assert OURS.keys() == CONFIGS.keys()
    for name, service in OURS.items():
        assert name in _PROCESSES
        assert service["command"] == ["worker", name, "--config", f"/etc/gardener/{name}.yaml"]


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_the_example_of_a_configuration_is_one(name):
    load_config(CONFIGS[name], FILE.parent / f"examples/compose/{name}.yaml")


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_containers_are_confined_and_come_back(name):
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["restart"] in ("unless-stopped", "on-failure")
    assert not service.get("privileged")
    if name in OURS:
        assert service["user"] == "65532:65532"


def test_nothing_listens_on_all_addresses_unless_told_to():
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert ports
    for port in ports:
        assert port.split(":-")[1].startswith("127.0.0.1}")


def test_no_password_is_in_the_file():
    variables = [each for service in SERVICES.values() for each in service.get("environment", {}).items()]
    passwords = [value for key, value in variables if "PASSWORD" in key or key == "POSTGRES_PWD"]
    assert passwords
    for value in passwords:
        assert value.startswith("${POSTGRES_PASSWORD:?")
