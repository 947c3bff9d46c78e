"""kube-apiserver of a shoot: Deployment, Service, PodDisruptionBudget, and its configuration files.

Flags follow Gardener's pkg/component/kubernetes/apiserver. Three points differ. Probes use no token: anonymous requests
are allowed for the health endpoints, so the pod template holds no credential. The files of structured authentication
and authorization have names without a digest of their content: the API server reads a changed file again, so a new
issuer of tokens or a new webhook restarts no pod. And a startup probe lets an API server on a busy seed take
its time: a liveness probe would kill it again and again while it starts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from activities.components import base, connections, etcd, gateway, vpn_egress
from activities.components.base import Manifest
from api import images
from api.decisions.wildcard_certificates import WildcardCertificate
from api.validation.logins import HEALTH_PATHS, NODE, RBAC, without_users_of

NAME = "kube-apiserver"
PORT = 443
"""Port of the Service and of the pods: it becomes the port of the shoot's ``kubernetes`` endpoint."""
ADVERTISE_ADDRESS = "240.0.0.1"
"""Address at which pods of the shoot reach their API server: on each node a proxy listens at this address.

The address belongs to no network (class E) and is the same in every seed, so a move of the control plane changes
nothing on nodes.
"""
ADVERTISE_ADDRESS_IPV6 = "fd30:1319:f1e:230c::1"
"""The same for Shoots with IPv6 alone: the API server refuses an address of another family than its Services have.

IPv6 has no range like class E that kernels route and that no network may have. The address is a unique local one, of a
random /48 out of which Gardener's node-local DNS has its address, too (RFC 4193). Addresses of ``::1/128`` and
``fe80::/10`` are refused by the API server as endpoints.
"""
SELECT = base.control_plane_labels("kubernetes", "apiserver")

VPN_HOST = "vpn-seed-server"
VPN_PROXY_PORT = 9443

_DEFAULT_MAX_INFLIGHT = 400
_DEFAULT_MAX_MUTATING_INFLIGHT = 200

_SHUTDOWN_DELAY_SECONDS = 15
"""Source: Gardener's pkg/component/kubernetes/apiserver."""
_TERMINATION_SECONDS = _SHUTDOWN_DELAY_SECONDS + 60 + 5
"""Grace period in seconds: the delay, then the longest time of a request, then the end of watches and connections.

A pod seldom needs so long.
"""

_SECRETS = "/srv/kubernetes"
_CONFIG = "/etc/kubernetes"
WILDCARD = f"{NAME}-wildcard"
"""Name of the Secret with the seed's certificate for names below its ingress domain."""
AUTHENTICATION, AUTHORIZATION = f"{NAME}-authentication", f"{NAME}-authorization"
"""Names of the ConfigMap and of the Secret with the files that the API server reads again when they change."""
_CONFIG_VERSION = "apiserver.config.k8s.io/v1beta1"
"""Version of both files: all versions of Kubernetes from 1.30 on read it, also while a new one is rolled out."""
_RESERVED = "system:"
"""Begin of names that no issuer of an owner may give: users like ``system:kube-controller-manager``, and the group
``system:masters``."""


@dataclass(frozen=True)
class Secrets:
    """Names of the Secrets that the API server mounts."""

    ca_bundle: str
    client_ca_bundle: str
    etcd_ca_bundle: str
    front_proxy_ca_bundle: str
    server: str
    etcd_client: str
    aggregator: str
    service_account_key: str
    service_account_key_bundle: str
    static_token: str
    encryption_configuration: str
    kubelet_ca_bundle: str = ""
    kubelet_client: str = ""
    vpn_ca_bundle: str = ""
    vpn_client: str = ""


@dataclass(frozen=True, repr=False)  # no repr, because the kubeconfig holds credentials
class AuthorizationWebhook:
    """One authorizer of the AuthorizationConfiguration: of the owner, or of the control plane."""

    authorizer: Mapping[str, Any]
    """The entry of the configuration, without connectionInfo."""
    kubeconfig: Mapping[str, Any]


@dataclass(frozen=True, repr=False)
class ApiServer:
    """Values of one shoot's API server."""

    namespace: str
    version: str
    replicas: int
    external_hostname: str
    issuer: str
    """Issuer of the tokens that the API server signs."""
    service_cidrs: Sequence[str]
    secrets: Secrets
    settings: Mapping[str, Any] = field(default_factory=dict)
    """``Shoot.spec.kubernetes.kubeAPIServer``."""
    audit_policy: str = ""
    """YAML of the owner's own policy; empty for the default."""
    authentication: Mapping[str, Any] = field(default_factory=dict)
    """The owner's AuthenticationConfiguration, without faults."""
    node_agent_authorizer: "AuthorizationWebhook | None" = None
    """Webhook that the API server asks about requests of node agents, before RBAC: its refusal is final."""
    webhooks: Sequence["AuthorizationWebhook"] = ()
    """The owner's webhooks, which the API server asks for each request that RBAC does not allow."""
    plugin_kubeconfigs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Kubeconfigs of admission plugins, by name of the plugin."""
    token_webhook: str = ""
    """Kubeconfig of a webhook for bearer tokens that the API server does not know itself; empty if there is none."""
    default_issuer: str = ""
    """Tokens of this issuer are always accepted, also if ``issuer`` is another one: pods may still hold such tokens."""
    key_set: str = ""
    """URL of the public keys that verify tokens; empty: the API server's own URL."""
    wildcard_host: str = ""
    """Host name for which clients get the seed's own certificate; empty if the seed has none."""
    wildcard: WildcardCertificate | None = None
    workers: bool = True
    vpn_servers: Sequence[str] = (VPN_HOST,)
    """Names of the VPN servers. If there are two, a proxy beside the API server chooses one for each connection."""
    failure_tolerance: str | None = None
    """``node`` or ``zone``: the replicas are spread over nodes, or over nodes and zones."""
    node_address: str = ""
    """Address of the node on which a self-hosted Shoot runs this API server, beside its etcd. Empty: it runs in a
    seed, with two etcds, and reaches nodes by a tunnel."""

    @property
    def tunneled(self) -> bool:
        """Whether it reaches the nodes by the tunnel."""
        return self.workers and not self.node_address


def service(namespace: str) -> Manifest:
    """The Service by which the control plane and the gateway reach the API server. It excludes unready pods."""
    made = base.service(NAME, namespace, select=SELECT, ports={"kube-apiserver": PORT}, labels=gateway.LABELS)
    return connections.annotated(made, connections.of_api_server())


def objects(server: ApiServer) -> list[Manifest]:
    """All objects but the Service, in the order to apply."""
    labels = {**SELECT, "gardener.cloud/role": "controlplane"}
    files = _config_maps(server, labels)
    return [
        *files,
        *_reloaded(server, labels),
        base.pod_disruption_budget(NAME, server.namespace, SELECT),
        _deployment(server, files),
    ]


def default_audit_policy() -> Manifest:
    """Audit policy that records which user changed which object.

    It omits events, leases, endpoint slices, requests for health and metrics, and reads of the cluster's own
    components.
    """
    quiet = ["events", "leases", "endpointslices"]
    system = ["system:kube-controller-manager", "system:kube-scheduler", "system:kube-proxy", "system:apiserver"]
    groups = [{"group": "", "resources": quiet[:1]}, {"group": "coordination.k8s.io", "resources": quiet[1:2]}]
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "None", "resources": [*groups, {"group": "discovery.k8s.io", "resources": quiet[2:]}]},
            {"level": "None", "users": system, "verbs": ["get", "list", "watch"]},
            {"level": "None", "userGroups": ["system:nodes"], "verbs": ["get", "list", "watch"]},
            {"level": "None", "nonResourceURLs": ["/healthz*", "/livez*", "/readyz*", "/version", "/metrics"]},
            {"level": "Metadata"},
        ],
    }


def _config_maps(server: ApiServer, labels: Mapping[str, str]) -> list[Manifest]:
    def config_map(name: str, files: Mapping[str, str]) -> Manifest:
        return base.versioned_config_map(f"{NAME}-{name}", server.namespace, files, labels=labels)

    policy = server.audit_policy or base.to_json(default_audit_policy())
    made = [
        config_map("audit-policy", {"audit-policy.yaml": policy}),
        config_map("admission", _admission_files(server)),
    ]
    if server.tunneled:
        egress = {"egress-selector-configuration.yaml": base.to_json(_egress_selector(server))}
        made.append(config_map("egress-selector", egress))
    if _chooses(server):
        proxy = vpn_egress.proxy_config(server.vpn_servers, _SECRETS)
        made.append(config_map(vpn_egress.NAME, {vpn_egress.FILE: base.to_json(proxy)}))
    if server.token_webhook:
        made.append(
            base.versioned_secret(
                f"{NAME}-token-webhook", server.namespace, {"kubeconfig": server.token_webhook}, labels=labels
            )
        )
    if server.plugin_kubeconfigs:
        # Admission plugins read their kubeconfigs only when the API server starts.
        kubeconfigs = {_kubeconfig_file(name): base.to_json(each) for name, each in server.plugin_kubeconfigs.items()}
        made.append(
            base.versioned_secret(f"{NAME}-admission-kubeconfigs", server.namespace, kubeconfigs, labels=labels)
        )
    return made


def _reloaded(server: ApiServer, labels: Mapping[str, str]) -> list[Manifest]:
    """The files that a running API server reads again when they change."""
    namespace = server.namespace
    authentication = {"authentication-config.yaml": base.to_json(_authentication(server))}
    wildcard = server.wildcard
    pair = {"tls.crt": wildcard.certificate, "tls.key": wildcard.key} if wildcard else {}
    return [
        *([base.secret(WILDCARD, namespace, pair, labels=labels)] if pair else []),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": base.metadata(AUTHENTICATION, namespace, labels=labels),
            "data": authentication,
        },
        # One Secret, so that the kubelet replaces the list of webhooks and their kubeconfigs at once.
        base.secret(AUTHORIZATION, namespace, _authorization_files(server), labels=labels),
    ]


def _authentication(server: ApiServer) -> Manifest:
    made: Manifest = {
        "apiVersion": _CONFIG_VERSION,
        "kind": "AuthenticationConfiguration",
        "jwt": [without_users_of(each, _RESERVED) for each in server.authentication.get("jwt") or ()],
        "anonymous": _anonymous(server),
    }
    return made


def _anonymous(server: ApiServer) -> Manifest:
    """Paths that anonymous clients may read: the health endpoints, and what the owner adds. No condition: all paths."""
    wanted = server.authentication.get("anonymous")
    added = [each["path"] for each in (wanted or {}).get("conditions") or ()]
    if wanted is not None and not added:
        return {"enabled": True}
    return {"enabled": True, "conditions": [{"path": path} for path in dict.fromkeys((*HEALTH_PATHS, *added))]}


def _authorization_files(server: ApiServer) -> dict[str, str]:
    """The list of authorizers, and the kubeconfig of each webhook.

    An owner's webhook is asked only about requests that Node and RBAC do not allow, so it cannot stop the control
    plane. The name of a kubeconfig has a digest of its content, because the API server reads a kubeconfig again only if
    the list of authorizers has changed.
    """
    authorizers: list[Manifest] = [{"type": "Node", "name": NODE}] if server.workers else []
    files = {}

    def add(each: AuthorizationWebhook) -> None:
        content = base.to_json(each.kubeconfig)
        file = f"{each.authorizer['name']}-{base.checksum(content)[:8]}.kubeconfig"
        files[file] = content
        connection = {"type": "KubeConfigFile", "kubeConfigFile": f"{_CONFIG}/authorization/{file}"}
        webhook = {**each.authorizer["webhook"], "connectionInfo": connection}
        authorizers.append({**each.authorizer, "webhook": webhook})

    if server.node_agent_authorizer is not None:
        add(server.node_agent_authorizer)
    authorizers.append({"type": "RBAC", "name": RBAC})
    for each in server.webhooks:
        add(each)
    made = {"apiVersion": _CONFIG_VERSION, "kind": "AuthorizationConfiguration", "authorizers": authorizers}
    return {"authorization-config.yaml": base.to_json(made), **files}


_PLUGIN_CONFIGURATIONS: dict[str, Manifest] = {
    name: {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "WebhookAdmissionConfiguration"}
    for name in ("MutatingAdmissionWebhook", "ValidatingAdmissionWebhook")
}
"""Admission plugins whose configuration names a kubeconfig, with the configuration's kind. ImagePolicyWebhook is the
third: its configuration has no kind, and names the kubeconfig one level deeper."""


def _admission_files(server: ApiServer) -> dict[str, str]:
    configured = []
    for plugin in server.settings.get("admissionPlugins") or []:
        if plugin.get("disabled"):
            continue
        configuration = _plugin_configuration(plugin, server.plugin_kubeconfigs)
        if configuration:
            configured.append({"name": plugin["name"], "configuration": configuration})
    configuration = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": configured,
    }
    return {"admission-configuration.yaml": base.to_json(configuration)}


def _plugin_configuration(plugin: Mapping[str, Any], kubeconfigs: Mapping[str, Mapping[str, Any]]) -> Manifest:
    """The owner's configuration of an admission plugin, with the path of its kubeconfig."""
    name, config = plugin["name"], dict(plugin.get("config") or {})
    if name not in kubeconfigs:
        return config
    path = f"{_CONFIG}/admission-kubeconfigs/{_kubeconfig_file(name)}"
    if name == "ImagePolicyWebhook":
        return {**config, "imagePolicy": {**(config.get("imagePolicy") or {}), "kubeConfigFile": path}}
    return {**_PLUGIN_CONFIGURATIONS[name], **config, "kubeConfigFile": path}


def _kubeconfig_file(plugin: str) -> str:
    return f"{plugin.lower()}.kubeconfig"


def _chooses(server: ApiServer) -> bool:
    """Whether a proxy beside the API server chooses between VPN servers."""
    return server.tunneled and len(server.vpn_servers) > 1


def _egress_selector(server: ApiServer) -> Manifest:
    tls = {
        "caBundle": f"{_SECRETS}/vpn-ca/bundle.crt",
        "clientCert": f"{_SECRETS}/vpn-client/tls.crt",
        "clientKey": f"{_SECRETS}/vpn-client/tls.key",
    }
    proxy: Manifest = {"tcp": {"url": f"https://{VPN_HOST}:{VPN_PROXY_PORT}", "tlsConfig": tls}}
    if _chooses(server):
        proxy = {"uds": {"udsName": vpn_egress.SOCKET}}
    direct = {"proxyProtocol": "Direct"}
    return {
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [
            {"name": "cluster", "connection": {"proxyProtocol": "HTTPConnect", "transport": proxy}},
            {"name": "controlplane", "connection": direct},
            {"name": "etcd", "connection": direct},
        ],
    }


def _connections(server: ApiServer) -> dict[str, str]:
    """Labels for what the API server connects to. It reaches networks of the Shoot by the tunnel alone."""
    labels = dict(connections.OWNERS_TARGETS)
    for role in etcd.ROLES:
        labels |= connections.within(f"{etcd.name_of(role)}-client", etcd.CLIENT_PORT)
    if server.tunneled:
        for name in server.vpn_servers:
            labels |= connections.within(name, VPN_PROXY_PORT)
    return labels


def _deployment(server: ApiServer, files: Sequence[Manifest]) -> Manifest:
    volumes, mounts = _secret_volumes(server)
    for item in files:
        name = item["metadata"]["name"]
        short = name.removeprefix(f"{NAME}-").rpartition("-")[0]
        secret = item["kind"] == "Secret"
        volumes.append(base.secret_volume(short, name) if secret else base.config_map_volume(short, name))
        mounts[short] = f"{_CONFIG}/{short}"
    volumes += [
        base.config_map_volume("authentication", AUTHENTICATION),
        base.secret_volume("authorization", AUTHORIZATION),
    ]
    mounts |= {"authentication": f"{_CONFIG}/authentication", "authorization": f"{_CONFIG}/authorization"}
    sidecars: Manifest = {}
    if _chooses(server):
        volumes += [base.empty_dir(vpn_egress.SOCKET_VOLUME, memory=True), base.empty_dir("tmp", memory=True)]
        mounts[vpn_egress.SOCKET_VOLUME] = vpn_egress.DIRECTORY
        del mounts[vpn_egress.NAME]
        sidecars = {"initContainers": [vpn_egress.container(_SECRETS)]}
    requests = base.at_least({"cpu": "250m", "memory": "400Mi"}, server.settings.get("autoscaling"))
    main = base.container(
        NAME,
        images.kubernetes(NAME, server.version),
        [f"/usr/local/bin/{NAME}", *_flags(server)],
        cpu=requests["cpu"],
        memory=requests["memory"],
        mounts=mounts,
        ports={"https": PORT},
        terminationMessagePolicy="FallbackToLogsOnError",
        **base.probes("/readyz", PORT, alive="/livez"),
    )
    return base.control_plane_deployment(
        NAME,
        server.namespace,
        select=SELECT,
        replicas=server.replicas,
        # A running API server refuses another list of paths for anonymous clients, so a change of it rolls the pods.
        annotations={"checksum/anonymous": base.checksum(_anonymous(server))},
        pod_labels=_connections(server),
        pod={
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": _TERMINATION_SECONDS,
            # A safe sysctl: without it, a process that is not root may not bind port 443.
            "securityContext": base.non_root_pod(
                sysctls=[{"name": "net.ipv4.ip_unprivileged_port_start", "value": str(PORT)}]
            ),
            "topologySpreadConstraints": base.spread(SELECT, server.failure_tolerance),
            **sidecars,
            "containers": [main],
            "volumes": volumes,
        },
    )


def _secret_volumes(server: ApiServer) -> tuple[list[Manifest], dict[str, str]]:
    secrets = server.secrets
    wanted = {
        "ca": (secrets.ca_bundle, ["bundle.crt"]),
        "ca-client": (secrets.client_ca_bundle, ["bundle.crt"]),
        "etcd-ca": (secrets.etcd_ca_bundle, ["bundle.crt"]),
        "etcd-client": (secrets.etcd_client, ["tls.crt", "tls.key"]),
        "front-proxy-ca": (secrets.front_proxy_ca_bundle, ["bundle.crt"]),
        "aggregator": (secrets.aggregator, ["tls.crt", "tls.key"]),
        "server": (secrets.server, ["tls.crt", "tls.key"]),
        "service-account-key": (secrets.service_account_key, ["id_rsa"]),
        "service-account-key-bundle": (secrets.service_account_key_bundle, ["bundle.key"]),
        "static-token": (secrets.static_token, ["static_tokens.csv"]),
        "encryption": (secrets.encryption_configuration, ["encryption-configuration.yaml"]),
    }
    if server.wildcard:
        wanted["wildcard"] = (WILDCARD, ["tls.crt", "tls.key"])
    if server.workers:
        wanted |= {
            "kubelet-ca": (secrets.kubelet_ca_bundle, ["bundle.crt"]),
            "kubelet-client": (secrets.kubelet_client, ["tls.crt", "tls.key"]),
        }
    if server.tunneled:
        wanted |= {
            "vpn-ca": (secrets.vpn_ca_bundle, ["bundle.crt"]),
            "vpn-client": (secrets.vpn_client, ["tls.crt", "tls.key"]),
        }
    volumes = [base.secret_volume(name, secret, *keys) for name, (secret, keys) in wanted.items()]
    return volumes, {name: f"{_SECRETS}/{name}" for name in wanted}


def _flags(server: ApiServer) -> list[str]:
    settings = server.settings
    requests = settings.get("requests") or {}
    config = _CONFIG
    flags = {
        "admission-control-config-file": f"{config}/admission/admission-configuration.yaml",
        "advertise-address": server.node_address or advertise_address(server.service_cidrs),
        "allow-privileged": "true",
        "audit-log-format": "json",
        # To stdout, with the other logs, so that no file fills the disk of the node.
        "audit-log-path": "-",
        "audit-log-mode": "batch",
        "audit-policy-file": f"{config}/audit-policy/audit-policy.yaml",
        "authentication-config": f"{config}/authentication/authentication-config.yaml",
        "authorization-config": f"{config}/authorization/authorization-config.yaml",
        "bind-address": "0.0.0.0",
        "client-ca-file": f"{_SECRETS}/ca-client/bundle.crt",
        "default-not-ready-toleration-seconds": str(settings.get("defaultNotReadyTolerationSeconds", 300)),
        "default-unreachable-toleration-seconds": str(settings.get("defaultUnreachableTolerationSeconds", 300)),
        "enable-aggregator-routing": "true",
        "enable-bootstrap-token-auth": "true",
        "encryption-provider-config": f"{_SECRETS}/encryption/encryption-configuration.yaml",
        "etcd-cafile": f"{_SECRETS}/etcd-ca/bundle.crt",
        "etcd-certfile": f"{_SECRETS}/etcd-client/tls.crt",
        "etcd-keyfile": f"{_SECRETS}/etcd-client/tls.key",
        **_etcd_flags(server),
        "event-ttl": settings.get("eventTTL", "1h"),
        "external-hostname": server.external_hostname,
        "goaway-chance": "0.001" if server.replicas > 1 else "0",
        "logging-format": "json",
        "max-mutating-requests-inflight": str(requests.get("maxMutatingInflight", _DEFAULT_MAX_MUTATING_INFLIGHT)),
        "max-requests-inflight": str(requests.get("maxNonMutatingInflight", _DEFAULT_MAX_INFLIGHT)),
        "profiling": "false",
        "proxy-client-cert-file": f"{_SECRETS}/aggregator/tls.crt",
        "proxy-client-key-file": f"{_SECRETS}/aggregator/tls.key",
        "requestheader-allowed-names": "system:kube-aggregator",
        "requestheader-client-ca-file": f"{_SECRETS}/front-proxy-ca/bundle.crt",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-username-headers": "X-Remote-User",
        "secure-port": str(PORT),
        # Serve new connections until the seed's nodes know that the pod ends: until then, nodes send connections to it.
        "shutdown-delay-duration": f"{_SHUTDOWN_DELAY_SECONDS}s",
        # After the delay, complete requests in progress, and answer late ones with Retry-After: clients try elsewhere.
        "shutdown-send-retry-after": "true",
        # Without this flag, the server waits until it is killed, because its watches do not end by themselves.
        "shutdown-watch-termination-grace-period": "1s",
        "service-account-key-file": f"{_SECRETS}/service-account-key-bundle/bundle.key",
        "service-account-signing-key-file": f"{_SECRETS}/service-account-key/id_rsa",
        "service-cluster-ip-range": ",".join(server.service_cidrs),
        "tls-cert-file": f"{_SECRETS}/server/tls.crt",
        "tls-min-version": settings.get("tlsMinVersion", "VersionTLS12"),
        "tls-private-key-file": f"{_SECRETS}/server/tls.key",
        "token-auth-file": f"{_SECRETS}/static-token/static_tokens.csv",
        "v": str((settings.get("logging") or {}).get("verbosity", 2)),
        **_service_account_flags(server),
        **_admission_flags(settings),
    }
    if server.tunneled:
        flags |= {
            # The endpoint is an object of our own, not of the API server: see apiserver_proxy.
            "endpoint-reconciler-type": "none",
            "egress-selector-config-file": f"{config}/egress-selector/egress-selector-configuration.yaml",
        }
    if server.workers:
        flags |= {
            "kubelet-certificate-authority": f"{_SECRETS}/kubelet-ca/bundle.crt",
            "kubelet-client-certificate": f"{_SECRETS}/kubelet-client/tls.crt",
            "kubelet-client-key": f"{_SECRETS}/kubelet-client/tls.key",
            "kubelet-preferred-address-types": "InternalIP,Hostname,ExternalIP",
        }
    if server.token_webhook:
        flags |= {
            "authentication-token-webhook-config-file": f"{config}/token-webhook/kubeconfig",
            "authentication-token-webhook-version": "v1",
            # As long as the API server itself keeps an accepted token. The default of 2 minutes would let a user in
            # for 2 minutes after the issuer has been removed.
            "authentication-token-webhook-cache-ttl": "10s",
        }
    if server.wildcard:
        # The API server reads both files again within a minute after they change.
        pair = f"{_SECRETS}/wildcard/tls.crt,{_SECRETS}/wildcard/tls.key"
        flags["tls-sni-cert-key"] = f"{pair}:{server.wildcard_host}"
    if gates := settings.get("featureGates"):
        flags["feature-gates"] = _pairs(gates)
    if runtime := settings.get("runtimeConfig"):
        flags["runtime-config"] = _pairs(runtime)
    if access := (settings.get("logging") or {}).get("httpAccessVerbosity"):
        flags["vmodule"] = f"httplog={access}"
    if sizes := (settings.get("watchCacheSizes") or {}).get("resources"):
        flags["watch-cache-sizes"] = ",".join(
            f"{each['resource']}{'.' + each['apiGroup'] if each.get('apiGroup') else ''}#{each['size']}"
            for each in sizes
        )
    accepted = (settings.get("serviceAccountConfig") or {}).get("acceptedIssuers") or []
    issuers = [server.issuer, *accepted, *([server.default_issuer] if server.default_issuer else [])]
    return sorted(f"--{flag}={value}" for flag, value in flags.items()) + [
        # The order matters: the API server signs tokens as the first issuer.
        f"--service-account-issuer={issuer}"
        for issuer in dict.fromkeys(issuers)
    ]


def advertise_address(service_cidrs: Sequence[str]) -> str:
    """Address of the endpoint of Service ``kubernetes``: of the first family of Services."""
    return ADVERTISE_ADDRESS_IPV6 if ":" in service_cidrs[0] else ADVERTISE_ADDRESS


def _etcd_flags(server: ApiServer) -> dict[str, str]:
    if server.node_address:
        return {"etcd-servers": f"https://127.0.0.1:{etcd.CLIENT_PORT}"}
    return {
        "etcd-servers": "https://etcd-main-client:2379",
        "etcd-servers-overrides": "/events#https://etcd-events-client:2379",
    }


def _service_account_flags(server: ApiServer) -> dict[str, str]:
    settings = server.settings.get("serviceAccountConfig") or {}
    audiences = server.settings.get("apiAudiences") or ["kubernetes", "gardener"]
    flags = {"api-audiences": ",".join(dict.fromkeys([server.issuer, *audiences]))}
    if "extendTokenExpiration" in settings:
        flags["service-account-extend-token-expiration"] = str(settings["extendTokenExpiration"]).lower()
    if server.key_set:
        flags["service-account-jwks-uri"] = server.key_set
    if settings.get("maxTokenExpiration"):
        flags["service-account-max-token-expiration"] = settings["maxTokenExpiration"]
    return flags


def _admission_flags(settings: Mapping[str, Any]) -> dict[str, str]:
    """Flags for admission plugins beyond Kubernetes' defaults, and for plugins that the owner disables."""
    plugins = settings.get("admissionPlugins") or []
    disabled = sorted({plugin["name"] for plugin in plugins if plugin.get("disabled")})
    enabled = sorted({"NodeRestriction", *(plugin["name"] for plugin in plugins)} - set(disabled))
    flags = {"enable-admission-plugins": ",".join(enabled)}
    if disabled:
        flags["disable-admission-plugins"] = ",".join(disabled)
    return flags


def _pairs(values: Mapping[str, Any]) -> str:
    return ",".join(
        f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in sorted(values.items())
    )
