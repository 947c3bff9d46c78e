"""The control plane of a self-hosted Shoot as static pods of its machine. Pure: manifests, certificates, settings."""

import ipaddress
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from activities.components import (
    apiserver,
    base,
    controller_manager,
    coredns,
    etcd,
    kube_proxy,
    operating_system_config,
    scheduler,
    self_hosted_controller,
    shoot_system,
    static_etcd,
    static_pod,
)
from activities.components.base import Manifest
from activities.components.static_pod import Content, StaticPod
from activities.provider_local import network
from activities.secrets.configs import (
    Certificate,
    CertificateAuthority,
    ClientKubeconfig,
    EtcdEncryptionKey,
    SecretConfig,
    ServiceAccountKey,
    StaticToken,
    Usage,
    kubeconfig,
)
from api.constants import SELF_HOSTED_NAMESPACE, WORKER_KUBERNETES_VERSION, WORKER_POOL, WORKER_SYSTEM_COMPONENTS
from api.contracts.self_hosted import InitTask, JoinTask, Machine, SelfHostedManifest
from api.decisions.conditions import find_condition
from api.names import dns_record_name

LOCAL_SERVER = f"https://127.0.0.1:{apiserver.PORT}"
"""URL at which the machine reaches its own API server."""
ENCRYPTION = "kube-apiserver-etcd-encryption-configuration"
ENCRYPTION_KEY = "kube-apiserver-etcd-encryption-key"
ADMIN, KUBELET = "admin", "kubelet"
CA = "ca"
_AUTHORITIES = (CA, "ca-client", etcd.CA, etcd.PEER_CA, "ca-front-proxy", "ca-kubelet")
_KUBELET_DIRECTORY = "/var/lib/kubelet"
KUBELET_UNIT = "kubelet.service"
KUBELET_KUBECONFIG = f"{_KUBELET_DIRECTORY}/kubeconfig-real"
_SHORT = timedelta(hours=720)
"""As kubelets of a Shoot with a garden. Its other components have tokens there, which a garden's gardenlet renews."""
_YEAR = timedelta(days=365)
RENEWAL, REPAIR = "gardener-shoot-renew", "gardener-shoot-repair"
"""Names of the units that renew certificates, and repair system components."""
SYSTEM = "self-hosted-system"
"""ConfigMap with the digest of the system components that were applied last."""
CREDENTIALS_SECRET = "cloudprovider"
"""Secret of the cluster with which its exposure is made."""
DNS_SECRET = "dnsrecord-external"
"""Secret of the cluster with which the record of its name is written."""
_BAD_CONDITIONS = ("DiskPressure", "MemoryPressure", "PIDPressure", "NetworkUnavailable")
CONTROL_PLANE_ROLE = "node-role.kubernetes.io/control-plane"
FINALIZER = "gardener.cloud/control-plane"
"""Finalizer of a Node of the control plane: its member leaves etcd before the Node is gone."""


def authorities() -> list[SecretConfig]:
    """Authorities, keys and tokens, which no other Secret signs."""
    return [
        *(CertificateAuthority(name) for name in _AUTHORITIES),
        ServiceAccountKey("service-account-key"),
        StaticToken("kube-apiserver-static-token"),
        EtcdEncryptionKey(ENCRYPTION_KEY),
    ]


def certificates(task: InitTask, ca: bytes) -> list[SecretConfig]:
    """Certificates of components, and kubeconfigs with client certificates: no token exists before the API server."""
    node, address = task.machine.node, task.machine.address
    services = ipaddress.ip_network(task.shoot.spec.networking.services)
    in_cluster = tuple(f"kubernetes{end}" for end in ("", ".default", ".default.svc", ".default.svc.cluster.local"))
    addresses = (address, "127.0.0.1", "::1")

    def server(name: str, signer: str, usage: Usage = Usage.SERVER, *names: str) -> Certificate:
        names = (*names, node, "localhost")
        return Certificate(
            name=name, common_name=name, usage=usage, signer=signer, dns_names=names, ip_addresses=addresses
        )

    def client(name: str, user: str, *groups: str) -> ClientKubeconfig:
        return ClientKubeconfig(
            name=name,
            common_name=user,
            organizations=groups,
            signer="ca-client",
            server=LOCAL_SERVER,
            server_ca=ca,
            validity=_SHORT,
        )

    return [
        Certificate(
            name=apiserver.NAME,
            common_name=apiserver.NAME,
            usage=Usage.SERVER,
            signer="ca",
            chain=True,
            dns_names=(*in_cluster, task.shoot.host, node, "localhost"),
            ip_addresses=(str(services[1]), *addresses),
        ),
        Certificate(
            name="kube-aggregator", common_name="system:kube-aggregator", usage=Usage.CLIENT, signer="ca-front-proxy"
        ),
        Certificate(
            name="kube-apiserver-kubelet",
            common_name="system:kube-apiserver:kubelet",
            usage=Usage.CLIENT,
            signer="ca-kubelet",
        ),
        etcd.client_certificate(),
        server(f"etcd-server-{etcd.MAIN}", etcd.CA, Usage.SERVER_AND_CLIENT),
        server(f"etcd-peer-server-{etcd.MAIN}", etcd.PEER_CA, Usage.SERVER_AND_CLIENT),
        server(f"{controller_manager.NAME}-server", "ca"),
        server(f"{scheduler.NAME}-server", "ca"),
        replace(server("kubelet-server", "ca-kubelet"), validity=_SHORT),
        replace(client(ADMIN, "gardener.cloud:system:self-hosted", "system:masters"), validity=_YEAR),
        client(controller_manager.NAME, "system:kube-controller-manager"),
        client(scheduler.NAME, "system:kube-scheduler"),
        client(self_hosted_controller.NAME, self_hosted_controller.USER),
        client(KUBELET, f"system:node:{node}", "system:nodes"),
    ]


def pods(
    task: InitTask, secrets: Content, store: Mapping[str, str] | None = None, existing: bytes | None = None
) -> list[StaticPod]:
    """The static pods, etcd first.

    ``store``: provider, bucket and prefix of etcd's backups; None if there are none. ``existing``: names the members of
    etcd that are there already; None for the first machine.
    """
    spec, namespace = task.shoot.spec, SELF_HOSTED_NAMESPACE
    version, services = spec.kubernetes.version, (spec.networking.services,)
    server = apiserver.ApiServer(
        namespace=namespace,
        version=version,
        replicas=1,
        external_hostname=task.shoot.host,
        issuer=f"https://{task.shoot.host}",
        service_cidrs=services,
        node_address=task.machine.address,
        secrets=apiserver.Secrets(
            ca_bundle="ca-bundle",
            client_ca_bundle="ca-client-bundle",
            etcd_ca_bundle=f"{etcd.CA}-bundle",
            front_proxy_ca_bundle="ca-front-proxy-bundle",
            server=apiserver.NAME,
            etcd_client="etcd-client",
            aggregator="kube-aggregator",
            service_account_key="service-account-key",
            service_account_key_bundle="service-account-key-bundle",
            static_token="kube-apiserver-static-token",
            encryption_configuration=ENCRYPTION,
            kubelet_ca_bundle="ca-kubelet-bundle",
            kubelet_client="kube-apiserver-kubelet",
        ),
    )
    manager = controller_manager.ControllerManager(
        namespace=namespace,
        version=version,
        replicas=1,
        pod_cidrs=(spec.networking.pods,),
        service_cidrs=services,
        secrets=controller_manager.Secrets(
            generic_kubeconfig=controller_manager.NAME,
            ca_bundle="ca-bundle",
            client_ca="ca-client",
            server=f"{controller_manager.NAME}-server",
            service_account_key="service-account-key",
            kubelet_ca="ca-kubelet",
        ),
    )
    scheduling = scheduler.Scheduler(
        namespace=namespace,
        version=version,
        replicas=1,
        generic_kubeconfig=scheduler.NAME,
        client_ca_bundle="ca-client-bundle",
        server=f"{scheduler.NAME}-server",
    )
    return [
        static_etcd.pod(task.machine.node, task.machine.address, secrets, task.shoot.technical_id, store, existing),
        # Requests would fail while it starts again. Its certificates end with their authorities.
        static_pod.of_deployment(apiserver.objects(server), secrets, restarts=False),
        static_pod.of_deployment(controller_manager.objects(manager), secrets),
        static_pod.of_deployment(scheduler.objects(scheduling), secrets),
        self_hosted_controller.pod(
            secrets, task.shoot.metadata.name if task.exposed else "", record_name(task) if task.named else ""
        ),
    ]


def kubelet_files(task: InitTask, secrets: Content) -> dict[str, tuple[bytes, int]]:
    """Content and mode of the files of a kubelet beside a control plane, by path."""
    pki = f"{_KUBELET_DIRECTORY}/pki"
    own = {
        "staticPodPath": static_pod.MANIFESTS,
        # The machine has the authorities: the kubelet starts before there is an API server that could sign a request.
        "serverTLSBootstrap": False,
        "tlsCertFile": f"{pki}/server.crt",
        "tlsPrivateKeyFile": f"{pki}/server.key",
    }
    server = secrets["kubelet-server"]
    return {
        **_kubelet(task.shoot, task.shoot.pool.name, task.machine, own),
        f"{_KUBELET_DIRECTORY}/ca.crt": (secrets["ca-kubelet-bundle"]["bundle.crt"], 0o644),
        KUBELET_KUBECONFIG: (secrets[KUBELET]["kubeconfig"], 0o600),
        f"{pki}/server.crt": (server["tls.crt"], 0o644),
        f"{pki}/server.key": (server["tls.key"], 0o600),
    }


def timers() -> dict[str, tuple[bytes, int]]:
    """Content and mode of the units of the machine's regular work, by path."""
    # Machines of one control plane renew at different times.
    renewal = "OnCalendar=daily\nOnBootSec=1min\nRandomizedDelaySec=1h\nPersistent=true\n"
    repair = "OnBootSec=1min\nOnUnitInactiveSec=5min\n"
    return _units(RENEWAL, "shoot renew", renewal) | _units(REPAIR, "shoot repair", repair)


def _units(name: str, command: str, times: str) -> dict[str, tuple[bytes, int]]:
    timer = f"[Unit]\nDescription={name}\n\n[Timer]\n{times}\n[Install]\nWantedBy=timers.target\n"
    service = f"[Unit]\nDescription={name}\n\n[Service]\nType=oneshot\nExecStart=/usr/local/bin/gardener {command}\n"
    return {
        f"/etc/systemd/system/{name}.service": (service.encode(), 0o644),
        f"/etc/systemd/system/{name}.timer": (timer.encode(), 0o644),
    }


def joining_kubelet_files(task: JoinTask) -> dict[str, tuple[bytes, int]]:
    """Content and mode of the files of a kubelet that gets its certificates with a bootstrap token, by path."""
    join, bootstrap = task.join, f"{_KUBELET_DIRECTORY}/kubeconfig-bootstrap"
    machine = Machine(node=join.node, address=task.address)
    return {
        **_kubelet(join.shoot, join.pool, machine, {}, f"    --bootstrap-kubeconfig={bootstrap} \\\n"),
        f"{_KUBELET_DIRECTORY}/ca.crt": (join.kubelet_ca.encode(), 0o644),
        bootstrap: (kubeconfig(f"https://{join.shoot.host}", join.ca.encode(), {"token": join.token}), 0o600),
    }


def _kubelet(
    manifest: SelfHostedManifest, pool: str, machine: Machine, own: Mapping[str, Any], flag: str = ""
) -> dict[str, tuple[bytes, int]]:
    """Configuration and unit of a kubelet. ``own``: settings that differ; ``flag``: a line of its command."""
    shoot = manifest.model_dump(mode="json")
    node = operating_system_config.NodeConfig(
        shoot=shoot, pool={"name": pool}, server=LOCAL_SERVER, cluster_ca="", kubelet_ca=""
    )
    configuration = {
        **operating_system_config.kubelet_configuration(node),
        # No controller removes a taint of new nodes.
        "registerWithTaints": [],
        **own,
    }
    labels = {
        WORKER_POOL: pool,
        WORKER_KUBERNETES_VERSION: node.kubernetes_version,
        WORKER_SYSTEM_COMPONENTS: "true",
    }
    unit = _UNIT.format(
        kubelet=node.kubelet_path,
        directory=_KUBELET_DIRECTORY,
        node=machine.node,
        address=machine.address,
        labels=",".join(f"{name}={value}" for name, value in sorted(labels.items())),
        kubeconfig=KUBELET_KUBECONFIG,
        flag=flag,
    )
    return {
        f"{_KUBELET_DIRECTORY}/config/kubelet": (base.to_json(configuration).encode(), 0o644),
        f"/etc/systemd/system/{KUBELET_UNIT}": (unit.encode(), 0o644),
    }


_UNIT = """\
[Unit]
Description=kubelet
After=containerd.service
Wants=containerd.service
StartLimitIntervalSec=0

[Service]
Restart=always
RestartSec=1
EnvironmentFile=-{directory}/extra_args
ExecStart={kubelet} \\
    --cert-dir={directory}/pki \\
    --config={directory}/config/kubelet \\
    --hostname-override={node} \\
    --kubeconfig={kubeconfig} \\
{flag}    --node-ip={address} \\
    --node-labels={labels} \\
    --v=2 \\
    $KUBELET_EXTRA_ARGS

[Install]
WantedBy=multi-user.target
"""


def system_objects(task: InitTask, ca: bytes) -> list[Manifest]:
    """Network, Services and DNS of the cluster, and rights of machines and of the controller.

    They are the same from each machine. Pods in the network of their node find the API server by the name that the
    node's own file of hosts has. CoreDNS is in the network of pods, and waits for kube-proxy.
    """
    spec, host = task.shoot.spec, task.shoot.host
    proxy = kube_proxy.KubeProxy(
        api_server=host,
        ca_bundle=ca,
        pod_cidrs=(spec.networking.pods,),
        pools=tuple((each.name, spec.kubernetes.version) for each in spec.provider.workers),
    )
    services = spec.networking.services
    dns = coredns.CoreDns(service_cidr=services, api_server=str(ipaddress.ip_network(services)[1]))
    return [
        *operating_system_config.rbac(),
        shoot_system.of_api_server(),
        *self_hosted_controller.rights(CREDENTIALS_SECRET, DNS_SECRET),
        *network.manifests(spec.networking.pods, host),
        *kube_proxy.objects(proxy),
        *coredns.objects(dns),
    ]


def marked(node: str) -> Manifest:
    """The part of a Node that says that it is one of the control plane."""
    metadata = {"name": node, "labels": {CONTROL_PLANE_ROLE: ""}, "finalizers": [FINALIZER]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def endpoint(node: Mapping[str, Any]) -> Manifest:
    """Endpoint of an exposure for a Node."""
    addresses = [{"type": each["type"], "address": each["address"]} for each in node["status"]["addresses"]]
    return {"nodeName": node["metadata"]["name"], "addresses": addresses}


def record_name(task: InitTask) -> str:
    """Name of the DNSRecord of the API servers."""
    return dns_record_name(task.shoot.metadata.name, "external")


def public_address(node: Mapping[str, Any]) -> str:
    """Address of a Node at which clients reach its API server."""
    found = {each["type"]: str(each["address"]) for each in node["status"]["addresses"]}
    return found.get("ExternalIP") or found["InternalIP"]


def serves(node: Mapping[str, Any], pods: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the API server of a Node can answer clients. ``pods``: those of the control plane, by name.

    Source: GEP-36.
    """
    if find_condition(node, "Ready").get("status") != "True":
        return False
    if any(find_condition(node, each).get("status", "False") != "False" for each in _BAD_CONDITIONS):
        return False
    # A kubelet that was ready before the API server tells of its static pods later: a missing pod is no fault.
    names = (f"{each}-{node['metadata']['name']}" for each in (static_etcd.NAME, apiserver.NAME))
    return all(find_condition(pods[each], "Ready").get("status") == "True" for each in names if each in pods)
