"""Flags of a shoot's API server, and flags that it never gets."""

import base64
import json

import pytest

from activities.components import apiserver, resource_manager
from activities.components.apiserver import ApiServer, AuthorizationWebhook, Secrets

SECRETS = Secrets(
    ca_bundle="ca-bundle",
    client_ca_bundle="ca-client-bundle",
    etcd_ca_bundle="ca-etcd-bundle",
    front_proxy_ca_bundle="ca-front-proxy-bundle",
    server="kube-apiserver-1",
    etcd_client="etcd-client-1",
    aggregator="kube-aggregator-1",
    service_account_key="service-account-key-1",
    service_account_key_bundle="service-account-key-bundle-1",
    static_token="kube-apiserver-static-token-1",
    encryption_configuration="kube-apiserver-etcd-encryption-configuration-1",
    kubelet_ca_bundle="ca-kubelet-bundle",
    kubelet_client="kube-apiserver-kubelet-1",
    vpn_ca_bundle="ca-vpn-bundle",
    vpn_client="kube-apiserver-http-proxy-client-1",
)


def server(**changes):
    values = {
        "namespace": "shoot--dev--a",
        "version": "1.37.1",
        "replicas": 1,
        "external_hostname": "api.a.dev.example.org",
        "issuer": "https://api.a.dev.internal.example.org",
        "service_cidrs": ["100.68.0.0/16"],
        "secrets": SECRETS,
    }
    return ApiServer(**{**values, **changes})


def deployment(made):
    return next(item for item in made if item["kind"] == "Deployment")


def flags(made):
    command = deployment(made)["spec"]["template"]["spec"]["containers"][0]["command"]
    return dict(flag.removeprefix("--").split("=", 1) for flag in command[1:])


def config_file(made, name, key):
    found = next(
        item
        for item in made
        if item["kind"] == "ConfigMap" and item["metadata"]["name"].startswith(f"kube-apiserver-{name}")
    )
    return json.loads(found["data"][key])


def authorizers(made):
    found = next(item for item in made if item["metadata"]["name"] == "kube-apiserver-authorization")
    return json.loads(base64.b64decode(found["data"]["authorization-config.yaml"]))["authorizers"]


def test_anonymous_clients_may_read_health_endpoints_only():
    """Probes go without a token, so no credential stands in the pod template."""
    made = apiserver.objects(server())
    anonymous = config_file(made, "authentication", "authentication-config.yaml")["anonymous"]

    assert {each["path"] for each in anonymous["conditions"]} == {"/healthz", "/livez", "/readyz"}
    assert "anonymous-auth" not in flags(made)
    probes = deployment(made)["spec"]["template"]["spec"]["containers"][0]
    assert "httpHeaders" not in probes["readinessProbe"]["httpGet"]


@pytest.mark.parametrize(
    ("ranges", "address"),
    [
        (["100.68.0.0/16"], "240.0.0.1"),
        (["100.68.0.0/16", "fd12:3456:789a:100::/112"], "240.0.0.1"),
        (["fd12:3456:789a:100::/112"], "fd30:1319:f1e:230c::1"),
    ],
)
def test_the_advertised_address_is_of_the_first_family_of_services(ranges, address):
    """The API server does not start with an address of another family."""
    assert flags(apiserver.objects(server(service_cidrs=ranges)))["advertise-address"] == address


def test_requests_to_a_terminating_api_server_are_served():
    """A client with a new connection each time saw one of 613 reset while the API server was rolled."""
    made = apiserver.objects(server())
    pod = deployment(made)["spec"]["template"]["spec"]

    assert flags(made)["shutdown-delay-duration"] == "15s"
    assert flags(made)["shutdown-send-retry-after"] == "true"
    # The delay, and then the longest that a request may take: --request-timeout is a minute.
    assert pod["terminationGracePeriodSeconds"] > 15 + 60


def test_all_connections_to_the_shoot_use_the_tunnel():
    selections = config_file(apiserver.objects(server()), "egress-selector", "egress-selector-configuration.yaml")[
        "egressSelections"
    ]
    by_name = {each["name"]: each["connection"] for each in selections}

    assert by_name["cluster"]["proxyProtocol"] == "HTTPConnect"
    assert by_name["cluster"]["transport"]["tcp"]["url"] == "https://vpn-seed-server:9443"
    assert by_name["cluster"]["transport"]["tcp"]["tlsConfig"]["clientCert"] == "/srv/kubernetes/vpn-client/tls.crt"
    assert by_name["etcd"] == by_name["controlplane"] == {"proxyProtocol": "Direct"}


def test_an_api_server_with_two_vpn_servers_connects_through_the_proxy_beside_it():
    objects = apiserver.objects(server(vpn_servers=("vpn-seed-server", "vpn-seed-server-1")))
    files = {name: text for item in objects for name, text in (item.get("data") or {}).items()}
    selections = json.loads(files["egress-selector-configuration.yaml"])["egressSelections"]
    egress = {each["name"]: each for each in selections}
    proxy = json.loads(files["envoy.json"])["static_resources"]
    listener = next(each for each in proxy["listeners"] if each["name"] == "connect")
    assert egress["cluster"]["connection"]["transport"] == {"uds": {"udsName": listener["address"]["pipe"]["path"]}}
    cluster = next(each for each in proxy["clusters"] if each["name"] == "servers")
    hosts = [each["lb_endpoints"][0]["endpoint"]["address"] for each in cluster["load_assignment"]["endpoints"]]
    assert [each["socket_address"]["address"] for each in hosts] == ["vpn-seed-server", "vpn-seed-server-1"]

    (workload,) = (item for item in objects if item["kind"] == "Deployment")
    pod = workload["spec"]["template"]["spec"]
    (sidecar,), (main,) = pod["initContainers"], pod["containers"]
    assert sidecar["restartPolicy"] == "Always"
    volumes = {each["name"] for each in pod["volumes"]}
    for container in (sidecar, main):
        assert {each["name"] for each in container["volumeMounts"]} <= volumes
    shared = [{each["name"]: each["mountPath"] for each in one["volumeMounts"]} for one in (sidecar, main)]
    assert shared[0]["vpn-egress-socket"] == shared[1]["vpn-egress-socket"] == "/run/vpn-egress"


def test_a_cluster_without_workers_has_no_tunnel_and_no_kubelets():
    made = apiserver.objects(server(workers=False))

    assert "egress-selector-config-file" not in flags(made)
    assert "kubelet-client-certificate" not in flags(made)
    assert [each["type"] for each in authorizers(made)] == ["RBAC"]
    volumes = {each["name"] for each in deployment(made)["spec"]["template"]["spec"]["volumes"]}
    assert not {"kubelet-ca", "kubelet-client", "vpn-ca", "vpn-client"} & volumes


def test_a_changed_configuration_rolls_the_pods_and_leaves_the_old_one_its_files():
    """A pod of the old revision that restarts must find what it was made for."""
    before = apiserver.objects(server())
    after = apiserver.objects(server(audit_policy="apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: []\n"))
    names = [{item["metadata"]["name"] for item in made if item["kind"] == "ConfigMap"} for made in (before, after)]

    assert len(names[0] - names[1]) == 1
    assert deployment(before)["spec"]["template"] != deployment(after)["spec"]["template"]
    reloaded = "kube-apiserver-authentication"
    assert all(
        item["immutable"] for item in before if item["kind"] == "ConfigMap" and item["metadata"]["name"] != reloaded
    )


def test_all_mounted_files_come_from_a_volume_of_the_pod():
    """A flag that names a file without a mount makes a crash loop."""
    made = apiserver.objects(server())
    mounts = [
        each["mountPath"] for each in deployment(made)["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    ]
    paths = [value for value in flags(made).values() if value.startswith(("/srv/", "/etc/"))]

    assert len(paths) > 15
    for path in paths:
        assert path.rpartition("/")[0] in mounts, path


def test_the_owners_settings_become_flags():
    settings = {
        "featureGates": {"B": False, "A": True},
        "runtimeConfig": {"api/alpha": True},
        "requests": {"maxNonMutatingInflight": 800, "maxMutatingInflight": 300},
        "eventTTL": "2h",
        "logging": {"httpAccessVerbosity": 3},
        "defaultNotReadyTolerationSeconds": 60,
        "watchCacheSizes": {"resources": [{"apiGroup": "apps", "resource": "deployments", "size": 50}]},
        "apiAudiences": ["one"],
        "serviceAccountConfig": {
            "acceptedIssuers": ["https://old.example.org"],
            "maxTokenExpiration": "720h",
            "extendTokenExpiration": False,
        },
        "admissionPlugins": [
            {"name": "PodNodeSelector", "config": {"podNodeSelectorPluginConfig": {}}},
            {"name": "PodSecurity", "disabled": True},
        ],
    }
    made = apiserver.objects(server(settings=settings))
    given = flags(made)

    assert given["feature-gates"] == "A=true,B=false"
    assert given["runtime-config"] == "api/alpha=true"
    assert (given["max-requests-inflight"], given["max-mutating-requests-inflight"]) == ("800", "300")
    assert given["event-ttl"] == "2h"
    assert given["vmodule"] == "httplog=3"
    assert given["default-not-ready-toleration-seconds"] == "60"
    assert given["watch-cache-sizes"] == "deployments.apps#50"
    assert given["api-audiences"] == "https://api.a.dev.internal.example.org,one"
    assert given["service-account-max-token-expiration"] == "720h"
    assert given["service-account-extend-token-expiration"] == "false"
    assert given["enable-admission-plugins"] == "NodeRestriction,PodNodeSelector"
    assert given["disable-admission-plugins"] == "PodSecurity"
    plugins = config_file(made, "admission", "admission-configuration.yaml")["plugins"]
    assert [each["name"] for each in plugins] == ["PodNodeSelector"]


@pytest.mark.parametrize(
    ("least", "requests"),
    [
        ({}, {"cpu": "250m", "memory": "400Mi"}),
        ({"memory": "1Gi"}, {"cpu": "250m", "memory": "1Gi"}),
        ({"cpu": 1, "memory": "1M"}, {"cpu": "1", "memory": "400Mi"}),
    ],
)
def test_the_owner_can_raise_the_requests_of_the_api_server(least, requests):
    made = apiserver.objects(server(settings={"autoscaling": {"minAllowed": least}}))

    assert deployment(made)["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"] == requests


def issuers(made):
    command = deployment(made)["spec"]["template"]["spec"]["containers"][0]["command"]
    flag = "--service-account-issuer="
    return [each.removeprefix(flag) for each in command if each.startswith(flag)]


def test_tokens_are_signed_by_the_first_issuer_and_accepted_from_all():
    settings = {"serviceAccountConfig": {"acceptedIssuers": ["https://old.example.org"]}}
    own = "https://api.a.dev.internal.example.org"
    made = apiserver.objects(server(settings=settings, default_issuer=own))
    assert issuers(made) == [own, "https://old.example.org"]
    assert "service-account-jwks-uri" not in flags(made)


def test_earlier_tokens_are_accepted_after_the_issuer_becomes_managed():
    managed, own = "https://issuer.example.org/projects/dev/shoots/1/issuer", "https://api.a.dev.internal.example.org"
    made = apiserver.objects(server(issuer=managed, default_issuer=own, key_set=f"{managed}/jwks"))
    assert issuers(made) == [managed, own]
    assert flags(made)["service-account-jwks-uri"] == f"{managed}/jwks"


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_single_api_server_never_closes_connections_to_rebalance(replicas):
    """GOAWAY balances connections between servers; with one it would only break them."""
    assert (flags(apiserver.objects(server(replicas=replicas)))["goaway-chance"] == "0") == (replicas == 1)


JWT = {"issuer": {"url": "https://a.example.org", "audiences": ["a"]}, "claimMappings": {"username": {"claim": "sub"}}}


def test_node_agents_are_denied_before_rbac_is_asked():
    """A denial is final only if no authorizer before it allows the request."""
    authorizer = resource_manager.node_agent_authorizer("shoot--dev--a", b"bundle")
    made = authorizers(apiserver.objects(server(node_agent_authorizer=authorizer, webhooks=[WEBHOOK])))

    assert [each["name"] for each in made] == ["node", "node-agent-authorizer", "rbac", "mine"]
    webhook = made[1]["webhook"]
    assert webhook["failurePolicy"] == "NoOpinion"
    assert webhook["matchConditions"] == [{"expression": "'gardener.cloud:node-agents' in request.groups"}]


WEBHOOK = AuthorizationWebhook({"type": "Webhook", "name": "mine", "webhook": {"timeout": "1s"}}, {"users": []})


def test_a_new_issuer_or_webhook_does_not_roll_the_pods():
    """The API server reads these files again itself; a rollout takes minutes, and ends watches."""
    before = apiserver.objects(server())
    after = apiserver.objects(server(authentication={"jwt": [JWT]}, webhooks=[WEBHOOK]))

    assert deployment(before) == deployment(after)
    assert config_file(after, "authentication", "authentication-config.yaml")["jwt"][0]["issuer"] == JWT["issuer"]
    assert [each["name"] for each in authorizers(after)] == ["node", "rbac", "mine"]


def test_other_paths_for_anonymous_clients_roll_the_pods():
    """A running API server refuses to change them, and would keep the old ones until its next start."""
    anonymous = {"enabled": True, "conditions": [{"path": "/version"}]}
    before, after = apiserver.objects(server()), apiserver.objects(server(authentication={"anonymous": anonymous}))

    assert deployment(before)["spec"]["template"] != deployment(after)["spec"]["template"]


def test_a_webhooks_kubeconfig_has_another_file_name_when_it_changes():
    """The API server reads a kubeconfig again only if the list of authorizers has changed."""
    other = AuthorizationWebhook(WEBHOOK.authorizer, {"users": [{"name": "other"}]})
    files = [
        authorizers(apiserver.objects(server(webhooks=[each])))[2]["webhook"]["connectionInfo"]["kubeConfigFile"]
        for each in (WEBHOOK, other)
    ]

    assert len(set(files)) == 2
    assert all(each.startswith("/etc/kubernetes/authorization/mine-") for each in files)


def test_a_webhook_for_tokens_is_asked_if_an_extension_has_one():
    assert not any("token-webhook" in flag for flag in flags(apiserver.objects(server())))
    made = apiserver.objects(server(token_webhook="kubeconfig"))

    assert flags(made)["authentication-token-webhook-config-file"] == "/etc/kubernetes/token-webhook/kubeconfig"
    assert "kubeconfig" not in json.dumps(deployment(made)["spec"]["template"]["metadata"])
