"""OperatingSystemConfigs of a worker pool: user data for the first boot, and files and units for the node agent.

Both start the same kubelet with the same files. So the first boot waits only for the API server's answer, and
the node agent finds files and units already in place. Names and order: spec/extensions.md 3 and 7.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from activities.components import coredns, kube_proxy, node_local_dns, node_logs, root_certificates, ssh_access
from api import constants, images, resources
from api.decisions import dual_stack
from api.decisions.versions import Version
from api.names import container_runtime_labels, is_updated_in_place, node_agent_secret_name, rotations_of_pool

BOOTSTRAPPERS_GROUP = "system:bootstrappers"
BOOTSTRAP_TOKEN_PLACEHOLDER = "<<BOOTSTRAP_TOKEN>>"
MACHINE_NAME_PLACEHOLDER = "<<MACHINE_NAME>>"

CHECKSUM_OF_SECRET = "checksum/data-script"
"""Annotation of a pool's Secret: SHA-256 of its content."""
CHECKSUM_APPLIED = "checksum/cloud-config-data"
"""Annotation of a Node: checksum of the content that its node agent applied last."""
SECRET_KEY = "osc.yaml"

_AGENT = "/var/lib/gardener-node-agent"
_KUBELET = "/var/lib/kubelet"
_BOOTSTRAP_TOKEN = f"{_AGENT}/credentials/bootstrap-token"
_CLUSTER_CA = f"{_AGENT}/ca.crt"
_KUBELET_CONFIG = f"{_KUBELET}/config/kubelet"
_KUBELET_BOOTSTRAP = f"{_KUBELET}/kubeconfig-bootstrap"
_KUBELET_CA = f"{_KUBELET}/ca.crt"
_KUBELET_CERTIFICATE = f"{_KUBELET}/pki/kubelet-client-current.pem"
"""Client certificate of the kubelet with its key. The kubelet renews it, and then replaces this link."""

_ADDRESSES = f"{_KUBELET}/node_addresses"
_FIND_ADDRESSES = f"{_KUBELET}/config/find-node-addresses"
_FIND_DEVICE = """\
set -eu
device=$(ip -4 -oneline route show default | sed -n 's/.* dev \\([^ ]*\\).*/\\1/p' | head -n 1)
address() {
    ip "$1" -oneline address show dev "$device" scope global | sed -n 's/.* inet6* \\([^/ ]*\\).*/\\1/p' | head -n 1
}
"""
_FIND_ADDRESSES_SCRIPT = f"""\
#!/bin/sh
# Write the addresses of this node, one of each IP family: the kubelet finds that of IPv4 alone by itself.
{_FIND_DEVICE}\
ipv4=$(address -4)
ipv6=$(address -6)
if [ -z "$ipv4" ] || [ -z "$ipv6" ]; then
    echo "interface '$device' has no address of IPv4 or none of IPv6: '$ipv4' '$ipv6'" >&2
    exit 1
fi
echo "NODE_ADDRESSES=--node-ip=$ipv4,$ipv6" > {_ADDRESSES}
"""
_FIND_IPV6_SCRIPT = f"""\
#!/bin/sh
# Write the address of IPv6 of this node: the kubelet would take that of IPv4, which the machine has beside it.
{_FIND_DEVICE}\
ipv6=$(address -6)
if [ -z "$ipv6" ]; then
    echo "interface '$device' has no address of IPv6" >&2
    exit 1
fi
echo "NODE_ADDRESSES=--node-ip=$ipv6" > {_ADDRESSES}
"""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_KERNEL_SETTINGS_FILE = "/etc/sysctl.d/99-k8s-general.conf"

_KUBELET_UNIT = "kubelet.service"
_AGENT_UNIT = "gardener-node-agent.service"
_INIT_UNIT = "gardener-node-init.service"

# A kubelet may not set labels of these domains on its own Node, except for some subdomains (NodeRestriction).
_RESTRICTED_DOMAINS = ("kubernetes.io", "k8s.io")
_ALLOWED_PREFIXES = ("kubelet.kubernetes.io", "node.kubernetes.io")

_LOG_QUERY = "NodeLogQuery"
"""Feature gate of a kubelet that serves logs of the services of its node."""

_NOT_READY = {"key": constants.TAINT_CRITICAL_COMPONENTS_NOT_READY, "effect": "NoSchedule"}
"""Taint of a new Node whose critical components, such as kube-proxy, do not run yet."""

_EVICTION_HARD = {
    "memory.available": "100Mi",
    "imagefs.available": "5%",
    "imagefs.inodesFree": "5%",
    "nodefs.available": "5%",
    "nodefs.inodesFree": "5%",
}
_EVICTION_SOFT = {
    "memory.available": "200Mi",
    "imagefs.available": "10%",
    "imagefs.inodesFree": "10%",
    "nodefs.available": "10%",
    "nodefs.inodesFree": "10%",
}
_EVICTION_SIGNALS = {
    "memoryAvailable": "memory.available",
    "imageFSAvailable": "imagefs.available",
    "imageFSInodesFree": "imagefs.inodesFree",
    "nodeFSAvailable": "nodefs.available",
    "nodeFSInodesFree": "nodefs.inodesFree",
}
_KERNEL_SETTINGS = {
    "net.ipv4.ip_forward": "1",
    "net.ipv4.conf.all.forwarding": "1",
    "net.ipv4.neigh.default.gc_thresh1": "0",
}
_KERNEL_SETTINGS_IPV6 = {
    "net.ipv6.conf.all.forwarding": "1",
    # Addresses of this interface are those of apiserver-proxy and of the DNS server on the node.
    "net.ipv6.conf.lo.disable_ipv6": "0",
}
"""Further settings of nodes with IPv6 alone."""


@dataclass(frozen=True)
class NodeConfig:
    """Values of the OperatingSystemConfigs of one pool."""

    shoot: Mapping[str, Any]
    pool: Mapping[str, Any]
    server: str
    """URL under which machines reach the API server."""
    cluster_ca: str
    """PEM bundle with which machines verify the API server."""
    kubelet_ca: str
    """PEM bundle with which the kubelet verifies requests of the API server."""
    provider_config: Mapping[str, Any] | None = field(default=None)
    ssh_keys: Sequence[str] = ()
    """Lines of ``authorized_keys``; empty if SSH is disabled."""
    root_certificates: str = ""
    """PEM bundle that machines trust in addition to the certificates of their image; empty if there is none."""
    logs_host: str = ""
    """Host name of the store to which nodes send their logs; empty if they do not."""

    @property
    def key(self) -> str:
        return node_agent_secret_name(self.shoot, self.pool)

    @property
    def kubernetes_version(self) -> str:
        of_pool = (self.pool.get("kubernetes") or {}).get("version")
        return str(of_pool or self.shoot["spec"]["kubernetes"]["version"])

    @property
    def kubelet_path(self) -> str:
        """Path with the version: an update changes the unit, and the old binary stays until no process uses it."""
        return f"/opt/kubernetes/{self.kubernetes_version}/kubelet"

    @property
    def finds_addresses(self) -> bool:
        """Whether the kubelet must be told the addresses of its node: by itself it takes that of IPv4 alone."""
        return dual_stack.has_ipv6(self.shoot)

    @property
    def ipv6_alone(self) -> bool:
        """Whether the node, its pods and Services have addresses of IPv6 alone."""
        return dual_stack.is_ipv6_alone(self.shoot)

    @property
    def cluster_dns(self) -> str:
        """DNS server of pods: the cluster's CoreDNS, or the server on their node if it is enabled and IPVS is used.

        With IPVS, the server on the node cannot take over the address of the cluster's DNS.
        """
        spec = self.shoot["spec"]
        if node_local_dns.is_wanted(spec) and kube_proxy.uses_ipvs(spec):
            return node_local_dns.address(ipv6=self.ipv6_alone)
        if self.ipv6_alone:
            # The Infrastructure has named it.
            return coredns.cluster_dns_address(self.shoot["status"]["networking"]["services"][0])
        return coredns.cluster_dns_address(spec["networking"]["services"].split(",")[0])


def provision(node: NodeConfig) -> dict[str, Any]:
    """Spec of purpose ``provision``: only the files and units that a machine needs to join."""
    return {
        **_common(node),
        "purpose": "provision",
        "files": [
            # Not encoded: the machine-controller-manager replaces these two values in the user data of each machine.
            _file(_BOOTSTRAP_TOKEN, BOOTSTRAP_TOKEN_PLACEHOLDER, 0o640, unencoded=True),
            _file(f"{_AGENT}/machine-name", MACHINE_NAME_PLACEHOLDER, unencoded=True),
            *_agent_files(node),
            _file(_KUBELET_BOOTSTRAP, _bootstrap_kubeconfig(node), 0o600),
            *_kubelet_files(node),
            *(_file(*each) for each in root_certificates.files(node.root_certificates)),
        ],
        "units": [
            {"name": _INIT_UNIT, "enable": True, "command": "start", "content": _init_unit()},
            *_units(node),
        ],
    }


def reconcile(node: NodeConfig) -> dict[str, Any]:
    """Spec of purpose ``reconcile``: the files and units that the node agent keeps in this state."""
    kubelet = {
        "path": node.kubelet_path,
        "permissions": 0o755,
        "content": {
            "imageRef": {
                "image": images.kubernetes("hyperkube", node.kubernetes_version),
                "filePathInImage": "/usr/local/bin/kubelet",
            }
        },
    }
    ipv6 = _KERNEL_SETTINGS_IPV6 if node.ipv6_alone else {}
    settings = {**_KERNEL_SETTINGS, **ipv6, **(node.pool.get("sysctls") or {})}
    sysctl = "".join(f"{name} = {value}\n" for name, value in sorted(settings.items()))
    return {
        **_common(node),
        "purpose": "reconcile",
        **({"inPlaceUpdates": in_place_updates(node)} if is_updated_in_place(node.pool) else {}),
        "criConfig": {
            "name": "containerd",
            "cgroupDriver": "cgroupfs",
            # The gardenlet owns the empty lists, so each of its writes replaces what extensions have added.
            "containerd": {"sandboxImage": images.PAUSE, "registries": [], "plugins": []},
        },
        "files": [
            *_agent_files(node),
            kubelet,
            *_kubelet_files(node),
            *(_file(*each) for each in root_certificates.files(node.root_certificates)),
            _file(_KERNEL_SETTINGS_FILE, sysctl),
            *(_file(*each) for each in ssh_access.files(node.ssh_keys)),
        ],
        "units": [
            *_units(node, _containerd_drop_ins(node)),
            {"name": "systemd-sysctl.service", "command": "restart", "filePaths": [_KERNEL_SETTINGS_FILE]},
            *ssh_access.units(node.ssh_keys),
            *node_logs.units(node.logs_host, certificate=_KUBELET_CERTIFICATE, cluster_ca=_CLUSTER_CA),
        ],
    }


def in_place_updates(node: NodeConfig) -> dict[str, Any]:
    """Versions and rotations that the machines of a pool with in-place updates are to have."""
    started = {
        kind: {"lastInitiationTime": time}
        for kind, time in rotations_of_pool(node.shoot, node.pool["name"]).items()
        if time
    }
    return {
        "operatingSystemVersion": node.pool["machine"]["image"]["version"],
        "kubelet": node.kubernetes_version,
        **({"credentialsRotation": started} if started else {}),
    }


def kubelet_configuration(node: NodeConfig) -> dict[str, Any]:
    """The kubelet's configuration: Gardener's defaults, and what the owner set for the Shoot or the pool.

    Settings that depend on the machine rather than on the cluster (swap, control groups) are in a drop-in of the
    machine image.
    """
    wanted = _kubelet_settings(node.shoot, node.pool)
    same_name = (
        "cpuCFSQuota", "cpuManagerPolicy", "containerLogMaxFiles", "containerLogMaxSize",
        "evictionMaxPodGracePeriod", "evictionPressureTransitionPeriod", "failSwapOn",
        "imageGCHighThresholdPercent", "imageGCLowThresholdPercent", "imageMaximumGCAge", "imageMinimumGCAge",
        "imagePullCredentialsVerificationPolicy", "maxParallelImagePulls", "memorySwap", "podPidsLimit",
        "preloadedImagesVerificationAllowlist", "protectKernelDefaults", "registryBurst", "seccompDefault",
        "serializeImagePulls", "singleProcessOOMKill", "streamingConnectionIdleTimeout",
    )  # fmt: skip
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True, "cacheTTL": "2m0s"},
            "x509": {"clientCAFile": _KUBELET_CA},
        },
        "authorization": {
            "mode": "Webhook",
            "webhook": {"cacheAuthorizedTTL": "5m0s", "cacheUnauthorizedTTL": "30s"},
        },
        "cgroupDriver": "cgroupfs",
        "clusterDNS": [node.cluster_dns],
        "clusterDomain": "cluster.local",
        "containerLogMaxSize": "100Mi",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "enableSystemLogQuery": _serves_logs_of_services(node),
        "evictionSoft": _thresholds(_EVICTION_SOFT, wanted.get("evictionSoft")),
        "evictionSoftGracePeriod": _thresholds(
            dict.fromkeys(_EVICTION_SOFT, "1m30s"), wanted.get("evictionSoftGracePeriod")
        ),
        "evictionMinimumReclaim": _thresholds({}, wanted.get("evictionMinimumReclaim")),
        "evictionMaxPodGracePeriod": 90,
        "evictionPressureTransitionPeriod": "4m0s",
        "failSwapOn": True,
        "imageGCHighThresholdPercent": 50,
        "imageGCLowThresholdPercent": 40,
        "protectKernelDefaults": True,
        "readOnlyPort": 0,
        # The resource manager removes the last taint once the node's critical components are ready.
        "registerWithTaints": [*(node.pool.get("taints") or []), _NOT_READY],
        "rotateCertificates": True,
        "serverTLSBootstrap": True,
        "serializeImagePulls": False,
        "shutdownGracePeriod": "0s",
        "tlsCipherSuites": [
            "TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256",
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        ],
        "volumePluginDir": "/var/lib/kubelet/volumeplugins",
        **reservations(node.shoot, node.pool),
        **{name: wanted[name] for name in same_name if wanted.get(name) is not None},
        **({"featureGates": gates} if (gates := _feature_gates(node)) else {}),
        **({"registryPullQPS": wanted["registryPullQPS"]} if wanted.get("registryPullQPS") is not None else {}),
    }  # fmt: skip


def reservations(shoot: Mapping[str, Any], pool: Mapping[str, Any]) -> dict[str, Any]:
    """Part of a kubelet's configuration that decides how much of a node's capacity pods may use."""
    wanted = _kubelet_settings(shoot, pool)
    reserved = constants.KUBE_RESERVED | (wanted.get("kubeReserved") or {})
    return {
        "evictionHard": _thresholds(_EVICTION_HARD, wanted.get("evictionHard")),
        "kubeReserved": {
            {"ephemeralStorage": "ephemeral-storage"}.get(name, name): amount for name, amount in reserved.items()
        },
        "maxPods": 110 if wanted.get("maxPods") is None else wanted["maxPods"],
    }


def _feature_gates(node: NodeConfig) -> dict[str, bool]:
    """The owner's feature gates, and the gate for logs of services: before 1.36, Kubernetes switches it off."""
    given: Mapping[str, bool] = _kubelet_settings(node.shoot, node.pool).get("featureGates") or {}
    needed = {_LOG_QUERY: True} if Version(node.kubernetes_version) < Version("1.36.0") else {}
    return {**needed, **given}


def _serves_logs_of_services(node: NodeConfig) -> bool:
    """Whether the kubelet answers requests for logs of services. It does not start with this but without its gate."""
    return _feature_gates(node).get(_LOG_QUERY, True)


def _kubelet_settings(shoot: Mapping[str, Any], pool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings of the pool's kubelets: the pool's own, or else the Shoot's."""
    return (pool.get("kubernetes") or {}).get("kubelet") or shoot["spec"]["kubernetes"].get("kubelet") or {}


def node_labels(node: NodeConfig) -> dict[str, str]:
    """Labels that the kubelet sets on its own Node; the machine-controller-manager sets those that it may not set."""
    of_pool = {name: value for name, value in (node.pool.get("labels") or {}).items() if _may_set(name)}
    system_components = (node.pool.get("systemComponents") or {}).get("allow", True)
    return {
        **of_pool,
        constants.WORKER_POOL: node.pool["name"],
        constants.WORKER_KUBERNETES_VERSION: node.kubernetes_version,
        constants.WORKER_NODE_AGENT_SECRET: node.key,
        constants.WORKER_CRI_NAME: (node.pool.get("cri") or {}).get("name", "containerd"),
        constants.WORKER_SYSTEM_COMPONENTS: str(bool(system_components)).lower(),
        **container_runtime_labels(node.pool),
    }


def pool_secret(
    osc: Mapping[str, Any],
    pool: str,
    key: str,
    secrets: Mapping[str, Mapping[str, str]],
    update: str = "",
) -> dict[str, Any]:
    """The Secret in kube-system that the pool's node agents apply: the spec, and additions of the OS extension.

    ``secrets``: base64 data, by name, of the Secrets to which files refer; the result holds their content inline.
    ``update``: hash of the pool's in-place update (``api.names.in_place_hash``): a node agent applies a config with
    another hash only once its node is drained.

    Raises KeyError if such a Secret is missing.
    """
    spec, status = osc["spec"], osc.get("status") or {}
    in_place = "inPlaceUpdates" in spec
    command = (status.get("inPlaceUpdates") or {}).get("osUpdate")
    os_update = {"osUpdate": command} if command else {}
    files = [_resolved(file, secrets) for file in (*(spec.get("files") or ()), *(status.get("extensionFiles") or ()))]
    document = {
        "apiVersion": resources.OPERATING_SYSTEM_CONFIG.api_version,
        "kind": "OperatingSystemConfig",
        "metadata": {"name": osc["metadata"]["name"]},
        "spec": {
            **{name: spec[name] for name in ("type", "purpose", "criConfig") if name in spec},
            **({"inPlaceUpdates": {**spec["inPlaceUpdates"], "hash": update, **os_update}} if in_place else {}),
            "files": files,
            "units": [*(spec.get("units") or ()), *(status.get("extensionUnits") or ())],
        },
    }
    # JSON is YAML. The keys are sorted, so that the same content always gives the same bytes.
    text = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": key,
            "namespace": "kube-system",
            "labels": {"gardener.cloud/role": "operating-system-config", constants.WORKER_POOL: pool},
            "annotations": {CHECKSUM_OF_SECRET: hashlib.sha256(text).hexdigest()},
        },
        "type": "Opaque",
        "data": {SECRET_KEY: base64.b64encode(text).decode()},
    }


def rbac() -> list[dict[str, Any]]:
    """Rights of joining machines. Node agents have no roles: the node-agent authorizer decides about their requests."""
    joining = [_group(BOOTSTRAPPERS_GROUP)]
    return [
        _cluster_role_binding("system:node-bootstrapper", "system:node-bootstrapper", joining),
        # No right to nodeclient: with this right, the kube-controller-manager would approve each Node for each token.
        # The resource manager approves a new Node only for the token of its Machine.
        _cluster_role_binding(
            "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
            "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
            [_group("system:nodes")],
        ),
    ]


def _common(node: NodeConfig) -> dict[str, Any]:
    config = node.provider_config
    return {"type": node.pool["machine"]["image"]["name"], **({"providerConfig": config} if config else {})}


def _agent_files(node: NodeConfig) -> list[dict[str, Any]]:
    config = {
        "server": node.server,
        "caFile": _CLUSTER_CA,
        "secretName": node.key,
        "kubernetesVersion": node.kubernetes_version,
    }
    return [_file(_CLUSTER_CA, node.cluster_ca), _file(f"{_AGENT}/config.yaml", _canonical(config))]


def _kubelet_files(node: NodeConfig) -> list[dict[str, Any]]:
    script = _FIND_IPV6_SCRIPT if node.ipv6_alone else _FIND_ADDRESSES_SCRIPT
    return [
        _file(_KUBELET_CA, node.kubelet_ca),
        _file(_KUBELET_CONFIG, _canonical(kubelet_configuration(node))),
        *([_file(_FIND_ADDRESSES, script, 0o755)] if node.finds_addresses else []),
    ]


def _containerd_drop_ins(node: NodeConfig) -> Sequence[Mapping[str, str]]:
    """containerd looks up the programs of a further container runtime in its PATH."""
    if not container_runtime_labels(node.pool):
        return ()
    content = f"[Service]\nEnvironment=PATH={constants.CONTAINER_RUNTIME_BINARIES}:{_PATH}\n"
    return ({"name": "10-container-runtimes.conf", "content": content},)


def _units(node: NodeConfig, containerd_drop_ins: Sequence[Mapping[str, str]] = ()) -> list[dict[str, Any]]:
    drop_ins = {"dropIns": list(containerd_drop_ins)} if containerd_drop_ins else {}
    return [
        *root_certificates.units(node.root_certificates),
        {"name": "containerd.service", "enable": True, "command": "start", **drop_ins},
        {
            "name": _KUBELET_UNIT,
            "enable": True,
            "command": "start",
            "content": _kubelet_unit(node),
            "filePaths": [
                _KUBELET_CONFIG,
                *_ca_of_kubelet(node),
                *([_FIND_ADDRESSES] if node.finds_addresses else []),
                node.kubelet_path,
            ],
        },
        {
            "name": _AGENT_UNIT,
            "enable": True,
            "command": "start",
            "content": _agent_unit(),
            "filePaths": [_CLUSTER_CA, f"{_AGENT}/config.yaml"],
        },
    ]


def _ca_of_kubelet(node: NodeConfig) -> list[str]:
    """The CA file of the kubelet if a change of the file must restart the kubelet.

    Since 1.36 (ReloadKubeletClientCAFile) the kubelet reads a changed file by itself. While the kubelet starts,
    requests for logs of its pods fail.
    """
    return [_KUBELET_CA] if Version(node.kubernetes_version) < Version("1.36.0") else []


def _kubelet_unit(node: NodeConfig) -> str:
    # One ExecStart with one option per line: extensions rely on this form to change the command.
    options = [
        f"--bootstrap-kubeconfig={_KUBELET_BOOTSTRAP}",
        f"--cert-dir={_KUBELET}/pki",
        f"--config={_KUBELET_CONFIG}",
        f"--kubeconfig={_KUBELET}/kubeconfig-real",
        "--node-labels=" + ",".join(f"{name}={value}" for name, value in sorted(node_labels(node).items())),
        "--v=2",
    ]
    if node.finds_addresses:
        options.append("$NODE_ADDRESSES")
    command = " \\\n    ".join([node.kubelet_path, *options, "$KUBELET_EXTRA_ARGS"])
    addresses = f"\nEnvironmentFile=-{_ADDRESSES}\nExecStartPre={_FIND_ADDRESSES}" if node.finds_addresses else ""
    return f"""\
[Unit]
Description=kubelet
After=containerd.service {_INIT_UNIT}
Wants=containerd.service
StartLimitIntervalSec=0

[Service]
Restart=always
RestartSec=1
EnvironmentFile=-{_KUBELET}/extra_args{addresses}
ExecStart={command}

[Install]
WantedBy=multi-user.target
"""


def _init_unit() -> str:
    return f"""\
[Unit]
Description=Ask for the certificate of the Gardener node agent

[Service]
Type=oneshot
RemainAfterExit=yes
Environment=PYTHONPATH=/opt/gardener/code:/opt/gardener/packages
ExecStart=/usr/bin/python3 -m workers.node_agent.init {_AGENT}/config.yaml

[Install]
WantedBy=multi-user.target
"""


def _agent_unit() -> str:
    return f"""\
[Unit]
Description=Gardener node agent
After=containerd.service {_INIT_UNIT}
StartLimitIntervalSec=0

[Service]
Restart=always
RestartSec=2
ExecStart=/usr/local/bin/gardener worker node-agent --config {_AGENT}/config.yaml

[Install]
WantedBy=multi-user.target
"""


def _bootstrap_kubeconfig(node: NodeConfig) -> str:
    return _canonical(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "shoot", "cluster": {"server": node.server, "certificate-authority": _CLUSTER_CA}}],
            "users": [{"name": "kubelet-bootstrap", "user": {"tokenFile": _BOOTSTRAP_TOKEN}}],
            "contexts": [{"name": "shoot", "context": {"cluster": "shoot", "user": "kubelet-bootstrap"}}],
            "current-context": "shoot",
        }
    )


def _thresholds(defaults: Mapping[str, str], wanted: Mapping[str, str] | None) -> dict[str, str]:
    given = wanted or {}
    changed = {signal: given[name] for name, signal in _EVICTION_SIGNALS.items() if given.get(name) is not None}
    return {**defaults, **changed}


def _may_set(label: str) -> bool:
    domain = label.split("/")[0] if "/" in label else ""
    if domain in _ALLOWED_PREFIXES or domain.endswith(tuple(f".{allowed}" for allowed in _ALLOWED_PREFIXES)):
        return True
    return not any(domain == restricted or domain.endswith(f".{restricted}") for restricted in _RESTRICTED_DOMAINS)


def _file(path: str, content: str, permissions: int = 0o644, *, unencoded: bool = False) -> dict[str, Any]:
    return {
        "path": path,
        "permissions": permissions,
        "content": {"inline": {"data": content}, **({"transmitUnencoded": True} if unencoded else {})},
    }


def _resolved(file: Mapping[str, Any], secrets: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    reference = file["content"].get("secretRef")
    if not reference:
        return dict(file)
    data = secrets[reference["name"]][reference["dataKey"]]
    return {**file, "content": {"inline": {"encoding": "b64", "data": data}}}


def _canonical(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _cluster_role_binding(name: str, role: str, subjects: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": subjects,
    }


def _group(name: str) -> dict[str, Any]:
    return {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name}
