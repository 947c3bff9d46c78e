"""The front door's configuration: Envoy accepts it, in a landscape and as its process writes it."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from landscape import front_door as of_landscape
from landscape.plan import Plan
from tests import front_door as started
from tests.front_door import ENVOY
from workers import front_door
from workers.front_door import FrontDoorConfig


def accepted(file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ENVOY, "--mode", "validate", "-c", file], capture_output=True, text=True, check=False)


async def test_envoy_accepts_the_files_that_the_process_writes(tmp_path: Path) -> None:
    config = started.door(tmp_path).config()
    config.directory.mkdir()
    file = tmp_path / "front-door.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json")))

    await front_door.run(str(file))

    checked = accepted(config.directory / front_door.CONFIG_FILE)
    assert checked.returncode == 0, checked.stderr
    assert {each.name for each in config.directory.iterdir()} == set(front_door.files(config))


@pytest.mark.parametrize(
    ("servers", "name"),
    [
        (["api.garden.example.org:443"], "api.garden.example.org"),
        (["[2001:db8::1]:6443", "192.0.2.1:6443"], "192.0.2.1"),
    ],
)
async def test_servers_are_names_or_addresses(tmp_path: Path, servers: list[str], name: str) -> None:
    door = started.door(tmp_path)
    config = door.config(apiServer={"endpoints": servers, "caFile": str(tmp_path / "ca.crt"), "serverName": name})
    config.directory.mkdir()
    for file, content in front_door.files(config).items():
        (config.directory / file).write_text(content)
    checked = accepted(config.directory / front_door.CONFIG_FILE)
    assert checked.returncode == 0, checked.stderr


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setattr("landscape.plan.RUN_HOME", tmp_path / "run")
    return Plan("a", 1, "1.37.1", state_home=tmp_path)


def test_two_envoys_of_a_landscape_share_the_gardens_address(plan: Plan) -> None:
    processes = of_landscape.processes(plan)
    plan.garden.run_directory.mkdir(parents=True)
    configurations = [json.loads(Path(process.argv[2]).read_text()) for process in processes]
    for process in processes:
        checked = accepted(Path(process.argv[2]))
        assert checked.returncode == 0, checked.stderr
    assert [process.name for process in processes] == ["garden/front-door-1", "garden/front-door-2"]
    addresses = [_listener(each, "garden")["address"]["socket_address"] for each in configurations]
    assert addresses == 2 * [{"address": plan.central_address, "port_value": 6443}]
    for part in ("metrics", "admin"):
        assert len({json.dumps(_address(each, part)) for each in configurations}) == 2
    assert of_landscape.processes(plan) == processes


def test_a_changed_configuration_replaces_the_envoys_of_a_landscape(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = of_landscape.processes(plan)
    monkeypatch.setattr(of_landscape, "SUBRESOURCES_PORTS", (1, 2))
    assert all(now != then for now, then in zip(of_landscape.processes(plan), before, strict=True))


def test_the_api_server_of_a_landscapes_garden_listens_behind_the_front_door_alone(plan: Plan) -> None:
    assert plan.garden.api_server_address == "127.0.0.1"
    assert plan.garden.server == f"https://{plan.central_address}:6443"
    assert all(each.api_server_address == each.address for each in (plan.cloud, *plan.seeds))


def test_only_requests_of_certificates_and_of_subresources_use_the_front_doors_own_certificate(tmp_path: Path) -> None:
    """A request without an identity on that connection would get the identity that its headers claim."""
    config = json.loads(front_door.files(started.door(tmp_path).config())[front_door.CONFIG_FILE])
    identified = {
        each["name"]
        for each in config["static_resources"]["clusters"]
        if "tls_certificate_sds_secret_configs"
        in each.get("transport_socket", {}).get("typed_config", {}).get("common_tls_context", {})
    }
    assert identified == {"kube-apiserver-with-identity", "subresources"}
    routes = _manager(config)["route_config"]["virtual_hosts"][0]["routes"]
    targets = [(each["match"], each["route"]["cluster"]) for each in routes if "route" in each]
    for match, cluster in targets:
        if cluster == "kube-apiserver-with-identity":
            assert match["headers"] == [{"name": "x-remote-user", "present_match": True}]
    assert [cluster for _, cluster in targets][-2:] == ["kube-apiserver-with-identity", "kube-apiserver"]


def test_a_certificate_that_is_not_verified_is_refused_by_the_first_route_already(tmp_path: Path) -> None:
    """The filter refuses it, too; this holds without the filter."""
    config = json.loads(front_door.files(started.door(tmp_path).config())[front_door.CONFIG_FILE])
    first = _manager(config)["route_config"]["virtual_hosts"][0]["routes"][0]
    assert first["match"] == {"prefix": "/", "tls_context": {"presented": True, "validated": False}}
    assert first["direct_response"]["status"] == 401


def test_no_request_is_sent_again_after_a_server_may_have_read_it(tmp_path: Path) -> None:
    config = json.loads(front_door.files(started.door(tmp_path).config())[front_door.CONFIG_FILE])
    policy = _manager(config)["route_config"]["virtual_hosts"][0]["retry_policy"]
    assert set(policy["retry_on"].split(",")) == {"connect-failure", "refused-stream", "reset-before-request"}


def test_paths_of_subresources_end_there() -> None:
    paths = [re.compile(each) for each in front_door.subresource_paths()]
    shoot = "/apis/core.gardener.cloud/v1beta1/namespaces/garden-local/shoots/demo"
    served = [f"{shoot}/{each}" for each in ("adminkubeconfig", "viewerkubeconfig", "binding")]
    assert all(any(each.fullmatch(path) for each in paths) for path in served)
    assert not any(each.fullmatch(path) for each in paths for path in (shoot, f"{shoot}/status", f"{shoot}/binding/x"))


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(ValueError, match="colour"):
        FrontDoorConfig.model_validate({"colour": "red"})


def _listener(config: dict[str, Any], name: str) -> dict[str, Any]:
    [found] = [each for each in config["static_resources"]["listeners"] if each["name"] == name]
    return dict(found)


def _manager(config: dict[str, Any]) -> dict[str, Any]:
    return dict(_listener(config, "garden")["filter_chains"][0]["filters"][0]["typed_config"])


def _address(config: dict[str, Any], part: str) -> Any:
    return config["admin"]["address"] if part == "admin" else _listener(config, part)["address"]
