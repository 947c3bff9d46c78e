"""One cluster: a control plane of host processes and, where the plan has a pod network, a node."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from api.decisions.conditions import find_condition
from api.labels import ZONE
from api.resources import NODE
from kube.client import KubeClient
from landscape import cgroups, containerd, dns, gateway_ipv6, pki, seed_load_balancer
from landscape.binaries import Binaries
from landscape.files import write_if_changed
from landscape.kernel import has_ipv6
from landscape.kube import apply, connected, is_ready
from landscape.plan import LOOPBACK, ClusterPlan, NodePlan, Plan
from landscape.processes import Processes, ProcessSpec, go_environment
from landscape.waiting import until

ADMISSION_PLUGINS = "NodeRestriction,DenyServiceExternalIPs"
"""A Service takes the connections to its ``externalIPs``: a tenant of the cloud could take those to the load balancer
of another one."""

# Admission plugins and controllers that these clusters do not need.
_KCM_WITHOUT = (
    "persistentvolume-expander-controller",
    "persistentvolume-attach-detach-controller",
    "ephemeral-volume-controller",
    "node-ipam-controller",
    "ttl-controller",
    "validatingadmissionpolicy-status-controller",
)
_GARDEN_CONTROLLERS = (
    "namespace-controller",
    "garbage-collector-controller",
    "serviceaccount-controller",
    "root-ca-certificate-publisher-controller",
    "certificatesigningrequest-approving-controller",
    "certificatesigningrequest-signing-controller",
    "certificatesigningrequest-cleaner-controller",
    "bootstrap-signer-controller",
    "token-cleaner-controller",
    "clusterrole-aggregation-controller",
    "resourcequota-controller",
)


@dataclass(frozen=True)
class Credentials:
    """Certificates and kubeconfigs of one cluster's processes."""

    directory: Path
    ca: pki.Authority
    front_proxy_ca: pki.Authority
    etcd_ca: pki.Authority
    service_account: pki.KeyPair

    @classmethod
    def of(cls, cluster: ClusterPlan) -> "Credentials":
        directory = cluster.directory / "pki"
        return cls(
            directory,
            pki.Authority(directory, "ca"),
            pki.Authority(directory, "front-proxy-ca"),
            pki.Authority(directory, "etcd-ca"),
            pki.service_account_key(directory),
        )

    def kubeconfig(self, cluster: ClusterPlan, component: str, user: str, groups: Sequence[str] = ()) -> Path:
        """Write the kubeconfig of a component next to its certificate."""
        client = self.ca.issue(component, user, groups)
        content = pki.kubeconfig(cluster.server, self.ca, client, cluster.name)
        return pki.write_kubeconfig(self.directory / f"{component}.kubeconfig", content)


class Cluster:
    """Starts and watches the processes of one cluster."""

    def __init__(self, plan: Plan, cluster: ClusterPlan, binaries: Binaries, processes: Processes) -> None:
        self._plan = plan
        self._cluster = cluster
        self._binaries = binaries
        self._processes = processes
        cluster.directory.mkdir(parents=True, exist_ok=True)
        cluster.run_directory.mkdir(parents=True, exist_ok=True)
        self._credentials = Credentials.of(cluster)

    async def start_control_plane(
        self, api_server_flags: Mapping[str, str] | None = None, front_door: Sequence[ProcessSpec] = ()
    ) -> None:
        """Start etcd and the API server; returns when the API server is ready, with the other components started.

        ``api_server_flags``: more flags of the API server. With ``authorization-config``, RBAC is not the only
        authorizer. ``front_door``: processes through which clients reach the API server.
        """
        admin = self._credentials.ca.issue("admin", "landscape-admin", ["system:masters"])
        content = pki.kubeconfig(self._cluster.server, self._credentials.ca, admin, self._cluster.name)
        path = pki.write_kubeconfig(self._plan.kubeconfig(self._cluster.name), content)
        self._start(self._etcd())
        self._start(self._api_server(api_server_flags or {}))
        for process in front_door:
            self._start(process)
        async with connected(path) as client:
            await until(partial(is_ready, client), f"API server of {self._cluster.name}", 120, self._hopeless)
        self._start(self._controller_manager())
        if self._cluster.has_node:
            self._start(self._scheduler())

    def start_containerd(self, node: NodePlan) -> None:
        self._start(containerd.process(node, enforces=self._plan.closed and self._cluster.is_seed))

    async def start_node(self, node: NodePlan) -> None:
        """Start kubelet and kube-proxy; returns when the node is ready. API server and containerd must run."""
        cgroups.create(node.cgroup)
        await containerd.ready(node.containerd_socket)
        self._start(self._kubelet(node))
        self._start(self._proxy(node))
        async with connected(self._plan.kubeconfig(self._cluster.name)) as client:
            if not self._cluster.is_zonal:
                await apply(client, _rights_of_only_node(node.name))
            await until(lambda: _node_ready(client, node.name), f"node {node.name}", 120, self._hopeless)

    def start_load_balancer(self) -> None:
        """Start the load balancer by which the seed's addresses lead to the gateways, on whichever nodes these are.

        By the kube-proxy, the API server in this network namespace reaches webhooks and aggregated APIs.
        """
        self._start(self._proxy(None))
        for process in seed_load_balancer.processes(self._plan, self._cluster):
            self._start(process)

    def start_gateway_ipv6(self) -> None:
        """Start the process by which the gateways of this seed have addresses of IPv6, if the kernel has IPv6."""
        if has_ipv6():
            self._start(gateway_ipv6.process(self._plan, self._cluster))

    def _start(self, spec: ProcessSpec) -> None:
        self._processes.start(spec)

    def _hopeless(self) -> str | None:
        """Reason for which this cluster will not become ready; ``None`` if it may."""
        names = [running.spec.name for running in self._processes.all() if self._cluster.has_process(running.spec.name)]
        return next(filter(None, map(self._processes.hopeless, names)), None)

    def _spec(
        self, component: str, flags: Mapping[str, str], *, node: NodePlan | None = None, heap_growth: int
    ) -> ProcessSpec:
        """A process of the control plane, or of a node; ``heap_growth`` as for ``go_environment``."""
        argv = (self._binaries[component], *(f"--{name}={value}" for name, value in flags.items()))
        place = node or self._cluster
        return ProcessSpec(f"{place.name}/{component}", argv, place.netns, go_environment(heap_growth))

    def _etcd(self) -> ProcessSpec:
        server = self._credentials.etcd_ca.issue("etcd", "etcd", names=[LOOPBACK, "localhost"])
        ca = str(self._credentials.etcd_ca.files.certificate)
        certificate, key = str(server.certificate), str(server.key)
        client, peer = f"https://{LOOPBACK}:2379", f"https://{LOOPBACK}:2380"
        flags = {
            "name": self._cluster.name,
            "data-dir": str(self._cluster.directory / "etcd"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"{self._cluster.name}={peer}",
            "client-cert-auth": "true",
            "trusted-ca-file": ca,
            "cert-file": certificate,
            "key-file": key,
            "peer-client-cert-auth": "true",
            "peer-trusted-ca-file": ca,
            "peer-cert-file": certificate,
            "peer-key-file": key,
            # A landscape ends with the machine: its data need not survive a power failure, so etcd need not sync them.
            "unsafe-no-fsync": "true",
            "auto-compaction-retention": "5m",
            "log-level": "warn",
        }
        return self._spec("etcd", flags, heap_growth=40)

    def _api_server(self, more: Mapping[str, str]) -> ProcessSpec:
        cluster, credentials = self._cluster, self._credentials
        server = credentials.ca.issue("kube-apiserver", "kube-apiserver", names=cluster.server_names)
        kubelet_client = credentials.ca.issue("kubelet-client", "kube-apiserver", ["system:masters"])
        proxy_client = credentials.front_proxy_ca.issue("front-proxy", "front-proxy-client")
        etcd_client = credentials.etcd_ca.issue("etcd-client", "kube-apiserver")
        flags = {
            "etcd-servers": f"https://{LOOPBACK}:2379",
            "etcd-cafile": str(credentials.etcd_ca.files.certificate),
            "etcd-certfile": str(etcd_client.certificate),
            "etcd-keyfile": str(etcd_client.key),
            "bind-address": cluster.api_server_address,
            "advertise-address": cluster.address,
            "secure-port": "6443",
            "tls-cert-file": str(server.certificate),
            "tls-private-key-file": str(server.key),
            "client-ca-file": str(credentials.ca.files.certificate),
            "enable-bootstrap-token-auth": "true",
            **({} if "authorization-config" in more else {"authorization-mode": "Node,RBAC"}),
            **more,
            "enable-admission-plugins": ADMISSION_PLUGINS,
            "allow-privileged": "true",
            "service-cluster-ip-range": _of_families(cluster.services, cluster.services_ipv6),
            "service-account-issuer": f"https://{cluster.name}.{self._plan.dns_zone}",
            "api-audiences": f"https://{cluster.name}.{self._plan.dns_zone},https://kubernetes.default.svc",
            "service-account-key-file": str(credentials.service_account.certificate),
            "service-account-signing-key-file": str(credentials.service_account.key),
            "kubelet-client-certificate": str(kubelet_client.certificate),
            "kubelet-client-key": str(kubelet_client.key),
            "kubelet-preferred-address-types": "InternalIP",
            "requestheader-client-ca-file": str(credentials.front_proxy_ca.files.certificate),
            "requestheader-allowed-names": "front-proxy-client",
            "requestheader-username-headers": "X-Remote-User",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            "proxy-client-cert-file": str(proxy_client.certificate),
            "proxy-client-key-file": str(proxy_client.key),
            "profiling": "false",
            "audit-policy-file": str(self._audit_policy()),
            "audit-log-path": str(self._plan.audit_log(cluster.name)),
            "audit-log-mode": "batch",
            "audit-log-maxsize": "50",
            "audit-log-maxbackup": "1",
        }
        if not cluster.has_node:
            # The API server cannot reach ClusterIPs here, so it calls aggregated APIs at their endpoints.
            flags["enable-aggregator-routing"] = "true"
        return self._spec("kube-apiserver", flags, heap_growth=75)

    def _audit_policy(self) -> Path:
        """Audit policy: user and object of each write; no reads, no contents, no periodic writes such as leases."""
        clocks = [
            {"group": "", "resources": ["events", "nodes/status"]},
            {"group": "coordination.k8s.io", "resources": ["leases"]},
            {"group": "authentication.k8s.io"},
            {"group": "authorization.k8s.io"},
        ]
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "omitManagedFields": True,
            "rules": [
                {"level": "None", "verbs": ["get", "list", "watch"]},
                {"level": "None", "resources": clocks},
                {"level": "Metadata"},
            ],
        }
        file = self._cluster.directory / "audit-policy.json"
        write_if_changed(file, json.dumps(policy, indent=2))
        return file

    def _controller_manager(self) -> ProcessSpec:
        cluster, credentials = self._cluster, self._credentials
        ca = credentials.ca.files
        kubeconfig = credentials.kubeconfig(cluster, "kube-controller-manager", "system:kube-controller-manager")
        controllers: tuple[str, ...] = _GARDEN_CONTROLLERS
        if cluster.has_node:
            controllers = ("*", *(f"-{name}" for name in _KCM_WITHOUT))
        flags = {
            "kubeconfig": str(kubeconfig),
            "authentication-kubeconfig": str(kubeconfig),
            "authorization-kubeconfig": str(kubeconfig),
            "controllers": ",".join(controllers),
            "cluster-name": cluster.name,
            "root-ca-file": str(ca.certificate),
            "cluster-signing-cert-file": str(ca.certificate),
            "cluster-signing-key-file": str(ca.key),
            "service-account-private-key-file": str(credentials.service_account.key),
            "use-service-account-credentials": "true",
            "allocate-node-cidrs": "false",
            "bind-address": LOOPBACK,
            "leader-elect": "false",
            "kube-api-qps": "500",
            "kube-api-burst": "1000",
            "concurrent-deployment-syncs": "10",
            "concurrent-statefulset-syncs": "10",
            "concurrent-namespace-syncs": "20",
            "profiling": "false",
            # Services forget the pods of a lost node after this time.
            **({"node-monitor-grace-period": "15s"} if cluster.is_zonal else {}),
        }
        return self._spec("kube-controller-manager", flags, heap_growth=40)

    def _scheduler(self) -> ProcessSpec:
        kubeconfig = self._credentials.kubeconfig(self._cluster, "kube-scheduler", "system:kube-scheduler")
        flags = {
            "kubeconfig": str(kubeconfig),
            "authentication-kubeconfig": str(kubeconfig),
            "authorization-kubeconfig": str(kubeconfig),
            "bind-address": LOOPBACK,
            "leader-elect": "false",
            "kube-api-qps": "500",
            "kube-api-burst": "1000",
            "profiling": "false",
        }
        return self._spec("kube-scheduler", flags, heap_growth=40)

    def _kubelet(self, node: NodePlan) -> ProcessSpec:
        cluster, credentials = self._cluster, self._credentials
        root = node.directory / "kubelet"
        user, zone = f"system:node:{node.name}", f"-{node.zone}" if cluster.is_zonal else ""
        kubeconfig = credentials.kubeconfig(cluster, f"kubelet{zone}", user, ["system:nodes"])
        names = [node.address, node.name]
        serving = credentials.ca.issue(f"kubelet-serving{zone}", user, ["system:nodes"], names=names)
        resolv = node.directory / "resolv.conf"
        resolv.write_text(resolv_conf(self._plan, self._cluster))
        config = kubelet_config(self._plan, cluster, node, credentials.ca.files.certificate, serving, resolv)
        file = node.directory / "kubelet.json"
        write_if_changed(file, json.dumps(config, indent=2))
        flags = {
            "config": str(file),
            "kubeconfig": str(kubeconfig),
            "root-dir": str(root),
            "cert-dir": str(root / "pki"),
            "hostname-override": node.name,
            "node-ip": node.address,
            # The Seed has the zones of its nodes, and pods of control planes may be pinned to them.
            "node-labels": f"{ZONE}={node.zone}",
        }
        return self._spec("kubelet", flags, node=node, heap_growth=40)

    def _proxy(self, node: NodePlan | None) -> ProcessSpec:
        """kube-proxy of a node, or of the network namespace of a zonal seed's control plane."""
        place = node or self._cluster
        kubeconfig = self._credentials.kubeconfig(self._cluster, "kube-proxy", "system:kube-proxy")
        config = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            "mode": "iptables",
            "bindAddress": place.address,
            "hostnameOverride": place.name,
            "clusterCIDR": _of_families(self._cluster.pods, self._cluster.pods_ipv6),
            "healthzBindAddress": "127.0.0.1:10256",
            "metricsBindAddress": "127.0.0.1:10249",
            # The conntrack table belongs to the whole machine: kube-proxy must not change its settings.
            "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
            "iptables": {"minSyncPeriod": "100ms", "syncPeriod": "30s"},
        }
        file = place.directory / "kube-proxy.json"
        write_if_changed(file, json.dumps(config, indent=2))
        return self._spec("kube-proxy", {"config": str(file)}, node=node, heap_growth=40)


def _of_families(network: str, network_ipv6: str) -> str:
    """Networks of both families, or that of IPv4 alone."""
    return f"{network},{network_ipv6}" if network_ipv6 and has_ipv6() else network


def resolv_conf(plan: Plan, cluster: ClusterPlan) -> str:
    """Name servers of pods that do not use the cluster's DNS. In the cloud these are the machines."""
    servers = [plan.central_address] if cluster.is_seed else dns.addresses(plan)
    return "".join(f"nameserver {each}\n" for each in servers)


def kubelet_config(
    plan: Plan, cluster: ClusterPlan, node: NodePlan, client_ca: Path, serving: pki.KeyPair, resolv_conf: Path
) -> dict[str, Any]:
    """Configuration of a kubelet that shares its machine with others, never evicts, and starts pods fast."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(client_ca)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(serving.certificate),
        "tlsPrivateKeyFile": str(serving.key),
        "clusterDomain": "cluster.local",
        "clusterDNS": [cluster.dns_address if cluster.is_seed else plan.central_address],
        "resolvConf": str(resolv_conf),
        "containerRuntimeEndpoint": f"unix://{node.containerd_socket}",
        "cgroupDriver": "cgroupfs",
        # Two kubelets with one cgroup root delete each other's pods.
        "cgroupRoot": node.cgroup,
        "failCgroupV1": False,
        "enforceNodeAllocatable": [],
        "evictionHard": {
            "memory.available": "1Mi",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
            "imagefs.inodesFree": "0%",
        },
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "oomScoreAdj": 0,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "localStorageCapacityIsolation": False,
        "maxPods": 110,
        "podLogsDir": str(node.directory / "pod-logs"),
        "volumePluginDir": str(node.directory / "volume-plugins"),
        "serializeImagePulls": False,
        "registryPullQPS": 0,
        "eventRecordQPS": 0,
        "kubeAPIQPS": 500,
        "kubeAPIBurst": 1000,
        "syncFrequency": "10s",
        "nodeStatusUpdateFrequency": "5s",
        "crashLoopBackOff": {"maxContainerRestartPeriod": "15s"},
        "shutdownGracePeriod": "0s",
    }


def _rights_of_only_node(name: str) -> dict[str, Any]:
    """Allow the only node to read all objects that pods need, without a check by the node authorizer.

    A kubelet may see a pod before the API server's node authorizer does. The authorizer then refuses the pod's claims,
    and the kubelet retries only 10 to 20 s later. In a cluster with one node, all pods belong to that node.
    """
    role = "system:node"
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"{role}:{name}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": f"{role}:{name}"}],
    }


async def _node_ready(client: KubeClient, name: str) -> bool:
    return find_condition(await client.find(NODE, name), "Ready").get("status") == "True"
