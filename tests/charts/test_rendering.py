"""The charts as Helm's own engine renders them: the processes that read the configurations accept them."""

import importlib
import json
from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
import yaml

from api import images
from api.decisions.managed_seeds import changes
from landscape import extensions, workers
from landscape.kernel import has_ipv6
from landscape.plan import Plan
from tests.unit.landscape.test_configuration import MODELS
from workers.front_door import FrontDoorConfig
from workers.gardenlet.config import GardenletConfig
from workers.lib.runtime import ConfigError, load_config
from workers.provider_local import access
from workers.provider_local.config import ProviderLocalConfig

CHARTS = Path(__file__).parents[2] / "charts"
Object = dict[str, Any]
FRONT_DOOR: Object = {
    "enabled": True,
    "tlsSecret": "garden-tls",
    "clientCASecret": "garden-client-ca",
    "identitySecret": "front-proxy-client",
    "apiServer": {"endpoints": ["10.0.0.1:6443", "10.0.0.2:6443"], "caSecret": "garden-ca"},
    "subresources": {"caSecret": "subresources-ca"},
}


def values_of(chart: str) -> Object:
    """Values without a default."""
    plan = Plan("a", 1, "1.37.1")
    seed = plan.seeds[0]
    match chart:
        case "gardenlet":
            return {"seedConfig": workers.seed_config(plan, seed)}
        case "provider-local":
            return {"seedName": seed.name, "loadBalancerIp": seed.address}
        case "gardener":
            return {
                "discoveryServer": {"enabled": True, "tlsSecret": "discovery-server-tls"},
                "subresources": {
                    "enabled": True,
                    "tlsSecret": "subresources-tls",
                    "requestHeader": {"caSecret": "request-header-ca"},
                },
                "frontDoor": FRONT_DOOR,
                "codecServer": {"enabled": True, "tlsSecret": "codec-server-tls", "clientCA": True},
            }
    return {}


def rendered(name: str, values: Object | None = None) -> list[Object]:
    with helm.Chart.load(CHARTS / name) as chart:
        files = chart.render(values_of(name) | (values or {}), name="release", namespace="garden")
    return [each for path, text in files.items() if path.endswith(".yaml") for each in yaml.safe_load_all(text) if each]


def kinds(objects: list[Object], kind: str) -> dict[str, Object]:
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}


NAMES = sorted(path.parent.name for path in CHARTS.glob("*/values.yaml"))


@pytest.fixture(params=NAMES)
def chart(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_there_is_a_chart_for_every_process_of_garden_and_seed():
    found = {
        _worker(each["spec"]["template"]["spec"])
        for name in NAMES
        for each in kinds(rendered(name), "Deployment").values()
    }
    # The network of a production seed enforces NetworkPolicies itself; the agent is for landscapes, see decision 23.
    assert found == set(MODELS) - {"network-policy-agent"} | {"front-door", "runtime-gvisor", "shoot-oidc-service"}


def _worker(pod: Object) -> str:
    """Name of the process of ours in a pod; the front door's runs before its Envoy."""
    [container] = pod.get("initContainers") or pod["containers"]
    name: str = container["args"][1]
    return name


def test_every_configuration_fits_the_process_that_reads_it(chart, tmp_path):
    models = MODELS | {
        "front-door": "workers.front_door:FrontDoorConfig",
        "promote": "workers.promote:PromoteConfig",
        "runtime-gvisor": "workers.extension.process:ExtensionConfig",
        "setup": "workers.setup:SetupConfig",
        "shoot-oidc-service": "workers.extension.process:ExtensionConfig",
    }
    objects = rendered(chart)
    for workload in [*kinds(objects, "Deployment").values(), *kinds(objects, "Job").values()]:
        pod = workload["spec"]["template"]["spec"]
        worker = _worker(pod)
        [volume] = [each for each in pod["volumes"] if each["name"] == "config"]
        file = tmp_path / f"{worker}.yaml"
        file.write_text(kinds(objects, "ConfigMap")[volume["configMap"]["name"]]["data"]["config.yaml"])
        module, model = models[worker].split(":")
        config = load_config(getattr(importlib.import_module(module), model), file)
        if worker in (
            "controller-manager", "gardenlet", "provider-local", "runtime-gvisor", "scheduler", "shoot-oidc-service",
        ):  # fmt: skip
            assert config.leader_election.leader_elect, f"two replicas of {worker} would both run its controllers"


def test_pods_are_confined(chart):
    """Non-root, read-only, no capabilities: a restricted namespace admits them."""
    objects = rendered(chart)
    for workload in [*kinds(objects, "Deployment").values(), *kinds(objects, "Job").values()]:
        pod = workload["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        containers = [*pod.get("initContainers", []), *pod["containers"]]
        for container in containers:
            assert container["image"] == (images.ENVOY if container["name"] == "envoy" else images.GARDENER)
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"].keys() >= {"cpu", "memory"}
            assert "memory" in container["resources"]["limits"]
        mounted = {mount["name"] for container in containers for mount in container["volumeMounts"]}
        assert not mounted ^ {each["name"] for each in pod["volumes"]}


def test_replicas_are_spread_and_protected_by_budgets(chart):
    objects = rendered(chart)
    deployments = kinds(objects, "Deployment")
    assert deployments
    assert deployments.keys() == kinds(objects, "PodDisruptionBudget").keys() == kinds(objects, "NetworkPolicy").keys()
    for name, deployment in deployments.items():
        assert deployment["spec"]["replicas"] == 2
        template = deployment["spec"]["template"]
        select = deployment["spec"]["selector"]["matchLabels"]
        assert select.items() <= template["metadata"]["labels"].items()
        for kind in ("PodDisruptionBudget", "NetworkPolicy"):
            spec = kinds(objects, kind)[name]["spec"]
            assert (spec.get("selector") or spec["podSelector"])["matchLabels"] == select
        [container] = template["spec"]["containers"]
        paths = [container[probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe")]
        assert paths == (["/ready", "/ready"] if container["name"] == "envoy" else ["/readyz", "/healthz"])


def test_no_value_holds_a_secret(chart):
    """Secrets are named, never rendered: a release keeps all its values."""
    assert not kinds(rendered(chart), "Secret")


def test_a_changed_configuration_rolls_the_pods(chart):
    def checksums(values: Object) -> set[str]:
        return {
            each["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
            for each in kinds(rendered(chart, values), "Deployment").values()
        }

    part = "controllerManager" if chart == "gardener" else None
    change: Object = {"config": {"somethingElse": 1}}
    assert checksums({part: change} if part else change) != checksums({})


def test_rules_for_prometheus_are_those_of_the_directory(chart):
    [rule] = kinds(
        rendered(chart, {"monitoring": {"enabled": True, "labels": {"prometheus": "x"}}}), "PrometheusRule"
    ).values()
    assert rule["metadata"]["labels"]["prometheus"] == "x"
    written = [
        group
        for file in sorted((CHARTS / chart / "rules").glob("*.yaml"))
        for group in yaml.safe_load(file.read_text())
    ]
    assert rule["spec"]["groups"] == written
    assert all(group["rules"] for group in written)


@pytest.mark.parametrize(
    ("chart", "values", "said"),
    [
        ("gardenlet", {"seedConfig": {}}, "metadata"),
        ("gardenlet", {"replicas": 0}, "replicas"),
        ("gardener", {"temporal": {"address": "http://temporal"}}, "address"),
        ("gardener", {"admission": {"url": "http://admission"}}, "url"),
        ("gardener", {"controllerManager": {"replica": 3}}, "replica"),
        ("gardener", {"versioning": {"previous": ["v 1"]}}, "previous"),
        ("provider-local", {"loadBalancerIp": "", "furtherLoadBalancerIps": ["198.18.2.5"]}, "needs loadBalancerIp"),
        ("provider-local", {"ipv6LoadBalancerIps": {"198.18.2.9": "2001:db8::1"}}, "names 198.18.2.9"),
        ("provider-local", {"ipv6LoadBalancerIps": {"198.18.18.2": "198.18.2.5"}}, "ipv6LoadBalancerIps"),
    ],
)
def test_a_wrong_value_is_refused_by_name(chart, values, said):
    with pytest.raises(helm.HelmError) as refused:
        rendered(chart, values)
    assert said in str(refused.value)


def test_a_chart_without_a_required_value_is_refused():
    for name in ("gardenlet", "provider-local"):
        with helm.Chart.load(CHARTS / name) as chart, pytest.raises(helm.HelmError, match="seed"):
            chart.render({}, name="release", namespace="garden")


def test_the_cloud_of_a_landscape_has_the_priority_class_of_the_chart():
    """Machines are pods of the cloud, where the chart is not installed."""
    assert [*kinds(rendered("provider-local"), "PriorityClass").values()] == [access.priority_class()]


def config_of(objects: list[Object]) -> Object:
    """Configuration of the only process of a chart."""
    [made] = kinds(objects, "ConfigMap").values()
    config: Object = yaml.safe_load(made["data"]["config.yaml"])
    return config


def test_provider_local_finds_the_values_of_its_seed():
    """One ControllerDeployment is for all seeds; the gardenlet names the seed."""
    values = {"seedName": "", "loadBalancerIp": "", "seeds": {"seed-7": {"loadBalancerIp": "198.18.7.2"}}}
    found = rendered("provider-local", {**values, "gardener": {"seed": {"name": "seed-7"}}})

    config = config_of(found)
    assert (config["seedName"], config["loadBalancerIp"]) == ("seed-7", "198.18.7.2")


def test_provider_local_knows_the_addresses_of_ipv6_of_its_seed_alone(tmp_path):
    plan = Plan("a", 1, "1.37.1", state_home=tmp_path)
    values = extensions.controller_deployment(plan)["helm"]["values"]["seeds"]
    for seed in plan.seeds:
        found = rendered(
            "provider-local",
            {"seedName": "", "loadBalancerIp": "", "seeds": values, "gardener": {"seed": {"name": seed.name}}},
        )
        config = ProviderLocalConfig.model_validate(config_of(found))
        assert config.ipv6_load_balancer_ips == (plan.gateway_addresses(seed.name) if has_ipv6() else {})


def test_provider_local_leaves_the_gateways_of_a_seed_without_address_to_its_cloud():
    """Such a seed is a Shoot: two processes that write one address would never end, so the right goes, too."""
    values = {"seedName": "", "loadBalancerIp": "", "seeds": {"seed-7": {"loadBalancerIp": "198.18.7.2"}}}
    found = {
        seed: rendered("provider-local", {**values, "gardener": {"seed": {"name": seed}}})
        for seed in ("seed-7", "nested")
    }

    configs = {seed: config_of(found[seed]) for seed in found}
    assert {seed: config["loadBalancerIp"] for seed, config in configs.items()} == {
        "seed-7": "198.18.7.2",
        "nested": "",
    }
    roles = {seed: kinds(found[seed], "ClusterRole")["gardener.cloud:extensions:provider-local"] for seed in found}
    writers = {seed: "services/status" in json.dumps(role["rules"]) for seed, role in roles.items()}
    assert writers == {"seed-7": True, "nested": False}


def test_the_oidc_service_has_the_rights_of_its_example_in_the_namespace_of_its_release() -> None:
    """A gardenlet installs it into a namespace with another name, as a release with the registration's name."""
    example = list(yaml.safe_load_all((CHARTS.parent / "examples/shoot_oidc_service/rbac.yaml").read_text()))
    objects = rendered("shoot-oidc-service", {"gardener": {"seed": {"name": "seed-1"}}})

    for kind, name in (
        ("ClusterRole", "extension-shoot-oidc-service"),
        ("ClusterRole", "extension-shoot-oidc-service-control-planes"),
    ):
        assert kinds(objects, kind)[name]["rules"] == kinds(example, kind)[name]["rules"]
    metadata = kinds(objects, "ClusterRole")["extension-shoot-oidc-service-control-planes"]["metadata"]
    assert metadata["labels"] == {"extensions.gardener.cloud/control-plane-role-of": "release"}
    account = kinds(objects, "ServiceAccount")["shoot-oidc-service"]["metadata"]
    annotation = metadata["annotations"]["extensions.gardener.cloud/service-account"]
    assert annotation == f"{account['namespace']}/{account['name']}" == "garden/shoot-oidc-service"
    for each in [*kinds(objects, "ClusterRoleBinding").values(), *kinds(objects, "RoleBinding").values()]:
        assert each["subjects"] == [
            {"kind": "ServiceAccount", "name": "shoot-oidc-service", "namespace": account["namespace"]}
        ]
    config = yaml.safe_load(kinds(objects, "ConfigMap")["shoot-oidc-service"]["data"]["config.yaml"])
    [_, leases] = kinds(objects, "Role")["shoot-oidc-service"]["rules"]
    assert config["heartbeatNamespace"] == config["leaderElection"]["resourceNamespace"] == account["namespace"]
    assert leases["resourceNames"] == ["gardener-extension-heartbeat", "gardener-extension-shoot-oidc-service"]


def test_charts_lint(chart):
    assert helm.lint(CHARTS / chart, values_of(chart))["errors"] == []


def test_the_garden_in_another_cluster_is_reached_by_kubeconfig_alone():
    objects = rendered("gardener", {"garden": {"kubeconfigSecret": "garden"}})
    assert not kinds(objects, "ClusterRoleBinding")
    for name in ("gardener-controller-manager", "gardener-scheduler", "gardener-admission"):
        config = yaml.safe_load(kinds(objects, "ConfigMap")[name]["data"]["config.yaml"])
        assert config["gardenClientConnection"] == {"kubeconfig": "/var/run/garden/kubeconfig"}
        assert load_mounts(kinds(objects, "Deployment")[name])["garden"] == "/var/run/garden"


def test_a_gardenlet_with_a_bootstrap_token_keeps_a_certificate_of_its_own():
    objects = rendered("gardenlet", {"garden": {"bootstrapKubeconfigSecret": "bootstrap"}})

    config = yaml.safe_load(kinds(objects, "ConfigMap")["gardenlet"]["data"]["config.yaml"])
    assert config["gardenClientConnection"] == {
        "bootstrapKubeconfig": "/var/run/garden/kubeconfig",
        "kubeconfigSecret": {"name": "gardenlet-kubeconfig", "namespace": "garden"},
    }
    volumes = kinds(objects, "Deployment")["gardenlet"]["spec"]["template"]["spec"]["volumes"]
    assert [each["secret"]["secretName"] for each in volumes if each["name"] == "garden"] == ["bootstrap"]


@pytest.mark.parametrize("secret", ["", "admission-tls"])
def test_admission_keeps_its_certificates_itself_or_takes_those_of_a_secret(secret: str):
    """Either way one alone writes the webhooks: two would take each other's authority away."""
    objects = rendered("gardener", {"admission": {"tlsSecret": secret, "url": "https://admission.example.org"}})

    admission, setup = (
        yaml.safe_load(kinds(objects, "ConfigMap")[name]["data"]["config.yaml"])
        for name in ("gardener-admission", "gardener-setup")
    )
    own = {"url": "https://admission.example.org"}
    mounts = load_mounts(kinds(objects, "Deployment")["gardener-admission"])
    if secret:
        assert "certificates" not in admission
        assert setup["webhooks"] == own | {"caFile": "/var/run/tls/ca.crt"}
        assert mounts["tls"] == "/var/run/tls"
    else:
        assert admission["certificates"] == own
        assert "webhooks" not in setup
        assert "tls" not in mounts


@pytest.mark.parametrize("secret", ["", "seed-authorizer-tls"])
def test_the_seed_authorizer_has_a_certificate_of_its_own_or_of_a_secret(secret: str):
    authorizer = {"tlsSecret": secret, "url": "https://admission.example.org:9444"}
    objects = rendered("gardener", {"admission": {"seedAuthorizer": authorizer}})

    config = yaml.safe_load(kinds(objects, "ConfigMap")["gardener-admission"]["data"]["config.yaml"])
    ports = {each["name"]: each["port"] for each in kinds(objects, "Service")["gardener-admission"]["spec"]["ports"]}
    mounts = load_mounts(kinds(objects, "Deployment")["gardener-admission"])
    assert ports == {"https": 9443, "authorizer": 9444}
    assert config["seedAuthorizer"].get("url") == (None if secret else "https://admission.example.org:9444")
    assert ("certificateFile" in config["seedAuthorizer"]) == ("seed-authorizer" in mounts) == bool(secret)


@pytest.mark.parametrize("secret", ["", "clients"])
def test_admission_requires_client_certificates_if_a_value_is_set(secret: str):
    clients = {"enabled": True, "caSecret": secret, "commonNames": ["api-server"]}
    objects = rendered("gardener", {"admission": {"clientAuthentication": clients}})

    config = yaml.safe_load(kinds(objects, "ConfigMap")["gardener-admission"]["data"]["config.yaml"])
    assert config["clientAuthentication"] == {"commonNames": ["api-server"]} | (
        {"caFile": "/var/run/clients/ca.crt"} if secret else {}
    )
    assert ("clients" in load_mounts(kinds(objects, "Deployment")["gardener-admission"])) == bool(secret)


def test_limits_of_objects_reach_admission_and_the_job_that_writes_its_webhooks():
    limits = {
        "limits": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"], "size": "100k"}],
        "operationMode": "log",
    }
    values = {"tlsSecret": "tls", "resourceAdmissionConfiguration": limits}
    found = kinds(rendered("gardener", {"admission": values}), "ConfigMap")
    admission, setup = (
        yaml.safe_load(found[name]["data"]["config.yaml"]) for name in ("gardener-admission", "gardener-setup")
    )
    assert admission["server"]["resourceAdmissionConfiguration"] == limits
    assert setup["webhooks"]["resourceAdmissionConfiguration"] == limits


def test_only_the_peers_of_a_value_reach_admission():
    peers = [{"ipBlock": {"cidr": "192.0.2.1/32"}}]
    for given in ([], peers):
        objects = rendered("gardener", {"networkPolicy": {"apiServerFrom": given}})
        ingress = kinds(objects, "NetworkPolicy")["gardener-admission"]["spec"]["ingress"]
        of_port = {rule["ports"][0]["port"]: rule.get("from", []) for rule in ingress}
        assert of_port[9443] == of_port[9444] == given


def load_mounts(deployment: Object) -> dict[str, str]:
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    return {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}


def test_an_earlier_version_runs_next_to_the_current_one_until_its_flows_have_ended():
    """It works on flows alone: two versions of a controller would undo each other's work."""
    objects = rendered("gardener", {"versioning": {"enabled": True, "previous": ["v0.0.9"]}})
    found = {}
    for name, deployment in kinds(objects, "Deployment").items():
        if name.startswith("gardener-controller-manager"):
            config = yaml.safe_load(kinds(objects, "ConfigMap")[name]["data"]["config.yaml"])
            [container] = deployment["spec"]["template"]["spec"]["containers"]
            versioning = config["temporal"]["versioning"]
            found[name] = (container["image"].rsplit(":")[-1], versioning["buildId"], config["controllers"])
    assert found == {
        "gardener-controller-manager": (images.OWN_VERSION, images.OWN_VERSION, True),
        "gardener-controller-manager-v0-0-9": ("v0.0.9", "v0.0.9", False),
    }
    promoted = yaml.safe_load(kinds(objects, "ConfigMap")["gardener-promote"]["data"]["config.yaml"])
    assert promoted["buildId"] == images.OWN_VERSION


def test_without_versioning_nothing_is_promoted():
    objects = rendered("gardener", {"versioning": {"enabled": False, "previous": []}})
    assert "gardener-promote" not in kinds(objects, "Job")
    config = yaml.safe_load(kinds(objects, "ConfigMap")["gardener-controller-manager"]["data"]["config.yaml"])
    assert config["temporal"]["versioning"]["enabled"] is False


def test_the_controller_manager_signs_certificates_of_managed_seeds_if_it_gets_the_authority():
    def rendered_with(secret: str) -> tuple[Object, list[Object]]:
        objects = rendered("gardener", {"controllerManager": {"managedSeeds": {"temporalAuthoritySecret": secret}}})
        name = "gardener-controller-manager"
        config = yaml.safe_load(kinds(objects, "ConfigMap")[name]["data"]["config.yaml"])
        return config, kinds(objects, "Deployment")[name]["spec"]["template"]["spec"]["volumes"]

    config, volumes = rendered_with("clients-ca")
    assert config["managedSeeds"]["temporalAuthorityKeyFile"] == "/var/run/temporal-authority/tls.key"
    assert "clients-ca" in [each["secret"]["secretName"] for each in volumes if "secret" in each]
    assert "managedSeeds" not in rendered_with("")[0]


TEMPORAL_FILES = {"caFile": "ca.crt", "certificateFile": "tls.crt", "privateKeyFile": "tls.key"}


@pytest.mark.parametrize("name", ["gardener", "gardenlet", "provider-local"])
def test_temporal_is_reached_with_a_certificate_unless_the_operator_says_otherwise(name: str) -> None:
    connections = temporal_connections(rendered(name, {"temporal": {"tls": {"serverName": "temporal.example.org"}}}))
    assert len(connections) == (3 if name == "gardener" else 1)
    for connection, mounts in connections:
        tls = connection["tls"]
        assert tls.pop("serverName") == "temporal.example.org"
        assert tls == {field: f"{mounts[f'{name}-temporal-tls']}/{file}" for field, file in TEMPORAL_FILES.items()}

    for connection, mounts in temporal_connections(rendered(name, {"temporal": {"tls": {"enabled": False}}})):
        assert "tls" not in connection
        assert f"{name}-temporal-tls" not in mounts


@pytest.mark.parametrize("name", ["gardener", "gardenlet", "provider-local"])
def test_a_connection_without_tls_brings_a_warning(name: str) -> None:
    def notes(values: Object) -> str:
        with helm.Chart.load(CHARTS / name) as loaded:
            files = loaded.render(values_of(name) | values, name="release", namespace="garden")
        return next(text for path, text in files.items() if path.endswith("NOTES.txt"))

    assert "WARNING: temporal.tls.enabled is false" in notes({"temporal": {"tls": {"enabled": False}}})
    assert "WARNING" not in notes({})


def test_tls_to_temporal_needs_a_secret() -> None:
    with pytest.raises(helm.HelmError, match=r"temporal\.tls\.secret is needed"):
        rendered("gardenlet", {"temporal": {"tls": {"secret": ""}}})


def temporal_connections(objects: list[Object]) -> list[tuple[Object, dict[str, str]]]:
    """The configuration of Temporal of each process, and the paths of its Secrets by their names."""
    found = []
    for workload in [*kinds(objects, "Deployment").values(), *kinds(objects, "Job").values()]:
        name = workload["metadata"]["name"]
        config = yaml.safe_load(kinds(objects, "ConfigMap")[name]["data"]["config.yaml"])
        connection = config if "deployment" in config else config.get("temporal")
        if connection:
            volumes = workload["spec"]["template"]["spec"]["volumes"]
            secrets = {each["name"]: each["secret"]["secretName"] for each in volumes if "secret" in each}
            mounts = load_mounts(workload)
            found.append((connection, {secret: mounts[volume] for volume, secret in secrets.items()}))
    return found


def test_the_front_door_has_its_secrets_by_name_and_no_token(tmp_path):
    """Only Envoy reads the keys; the process that writes its files needs none."""
    objects = rendered("gardener")
    pod = kinds(objects, "Deployment")["gardener-front-door"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    secrets = {each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each}
    assert secrets == {"garden-tls", "garden-client-ca", "front-proxy-client", "garden-ca", "subresources-ca"}
    [init] = pod["initContainers"]
    assert {each["name"] for each in init["volumeMounts"]} == {"config", "envoy", "tmp"}

    file = tmp_path / "config.yaml"
    file.write_text(kinds(objects, "ConfigMap")["gardener-front-door"]["data"]["config.yaml"])
    config = load_config(FrontDoorConfig, file)
    assert config.api_server.endpoints == ("10.0.0.1:6443", "10.0.0.2:6443")
    assert config.subresources.endpoints == ("gardener-subresources.garden.svc:443",)
    [envoy] = pod["containers"]
    mounts = [Path(each["mountPath"]) for each in envoy["volumeMounts"]]
    content = json.loads(json.dumps(config.model_dump(mode="json")))
    read = [
        value for part in content.values() if isinstance(part, dict) for key, value in part.items() if "File" in key
    ]
    assert len(read) == 7
    assert all(any(Path(file).is_relative_to(mount) for mount in mounts) for file in read)


@pytest.mark.parametrize("missing", ["tlsSecret", "clientCASecret", "identitySecret", "apiServer", "subresources"])
def test_a_front_door_without_one_of_its_secrets_is_not_installed(missing):
    values = {"frontDoor": {key: value for key, value in FRONT_DOOR.items() if key != missing}}
    with pytest.raises(helm.HelmError, match=f"frontDoor.{missing}"):
        rendered("gardener", values)


def _configuration(**values: Any) -> str:
    content: str = kinds(rendered("gardenlet", values), "ConfigMap")["gardenlet"]["data"]["config.yaml"]
    return content


def test_feature_gates_reach_the_gardenlet_which_refuses_those_that_it_does_not_know(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(_configuration(featureGates={"LiveControlPlaneMigration": False}))
    assert load_config(GardenletConfig, file).feature_gates == {"LiveControlPlaneMigration": False}

    for gates, fault in (({"Unheard": True}, "there is no such gate"), ({"InPlaceNodeUpdates": True}, "not possible")):
        file.write_text(_configuration(featureGates=gates))
        with pytest.raises(ConfigError, match=fault):
            load_config(GardenletConfig, file)
    with pytest.raises(helm.HelmError, match="featureGates"):
        _configuration(featureGates={"LiveControlPlaneMigration": "no"})


def test_the_gardenlets_chart_keeps_the_values_of_its_installation():
    """A Gardenlet merges its own values over them."""
    kept = kinds(rendered("gardenlet", {"priorityClassName": "important"}), "ConfigMap")["gardenlet-values"]["data"]
    values, defaults = (yaml.safe_load(kept[f"{name}.yaml"]) for name in ("values", "defaults"))
    assert defaults == yaml.safe_load((CHARTS / "gardenlet/values.yaml").read_text())
    assert changes(values, defaults) == values_of("gardenlet") | {"priorityClassName": "important"}
