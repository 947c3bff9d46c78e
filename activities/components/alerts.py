"""Alerts of a Shoot's Prometheus: a part of the cluster has failed, or will fail soon.

Names, thresholds and labels: as Gardener's, for the metrics of our jobs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from activities.components import (
    apiserver,
    controller_manager,
    exporters,
    kube_state_metrics,
    machine_controller_manager,
    scheduler,
)
from activities.components.base import Manifest

_DATABASE_LIMIT = 8 * 2**30
"""Maximum size of an etcd's database in bytes: ``spec.etcd.quota``."""
_LEFT = "kubelet_volume_stats_available_bytes / kubelet_volume_stats_capacity_bytes"
_CLAIM = "PersistentVolumeClaim {{ $labels.namespace }}/{{ $labels.persistentvolumeclaim }}"


@dataclass(frozen=True)
class Alert:
    name: str
    expression: str
    after: str
    """Time for which the expression must hold before the alert fires."""
    severity: str
    service: str
    says: str
    type: str = "seed"
    """``shoot`` if the alert is about components in the cluster itself."""
    visibility: str = "all"
    """Receivers of the alert: ``all``, the ``owner``, or the seed's ``operator``."""

    def rule(self) -> Manifest:
        labels = {name: getattr(self, name) for name in ("service", "severity", "type", "visibility")}
        annotations = {"summary": self.name, "description": self.says}
        return {
            "alert": self.name,
            "expr": self.expression,
            "for": self.after,
            "labels": labels,
            "annotations": annotations,
        }


def rules(*, workers: bool, vpn_servers: Sequence[str]) -> Manifest:
    """A file of rules. ``workers``: the Shoot has nodes. ``vpn_servers``: names of its VPN servers."""
    nodes = {"nodes": [*_NODES, *_vpn(vpn_servers)]} if workers else {}
    groups = {"control-plane": [*_CONTROL_PLANE, *_etcd()], **nodes}
    return {"groups": [{"name": name, "rules": [each.rule() for each in found]} for name, found in groups.items()]}


def _down(job: str) -> str:
    """Expression that holds if none of the pods of a job answers."""
    return f'absent(up{{job="{job}"}} == 1)'


def _refuses_file(of: str) -> str:
    """Expression that holds while the API server's last attempt to read a changed file of logins has failed."""
    time = f"apiserver_{of}_config_controller_automatic_reload_last_timestamp_seconds"
    failure, success = (f'{time}{{job="{apiserver.NAME}",status="{status}"}}' for status in ("failure", "success"))
    return f"{failure} unless ignoring (status) ({success} > ignoring (status) {failure})"


_CONTROL_PLANE = (
    Alert("KubeApiserverDown", _down(apiserver.NAME), "5m", "blocker", apiserver.NAME,
          "The API server does not answer."),
    Alert("KubeControllerManagerDown", _down(controller_manager.NAME), "15m", "critical", controller_manager.NAME,
          "Deployments, jobs and other resources are not reconciled."),
    Alert("ApiServerNotReachable", 'probe_success{job="blackbox-apiserver"} == 0', "5m", "blocker", apiserver.NAME,
          "The API server cannot be reached at {{ $labels.instance }}."),
    Alert("ApiServerRefusesAuthenticationConfiguration", _refuses_file("authentication"), "5m", "warning",
          apiserver.NAME, "The API server refuses the ConfigMap of structuredAuthentication, for example an expression "
          "of CEL. It uses the previous one until its next start. Its log has the reason.", visibility="owner"),
    Alert("ApiServerRefusesAuthorizationConfiguration", _refuses_file("authorization"), "5m", "warning",
          apiserver.NAME, "The API server refuses the ConfigMap of structuredAuthorization, for example an expression "
          "of CEL. It uses the previous one until its next start. Its log has the reason.", visibility="owner"),
)  # fmt: skip
_NODES = (
    Alert("KubeSchedulerDown", _down(scheduler.NAME), "15m", "critical", scheduler.NAME,
          "New pods are not assigned to nodes."),
    Alert("MachineControllerManagerDown", _down(machine_controller_manager.NAME), "15m", "critical",
          machine_controller_manager.NAME, "Machines are neither created nor replaced."),
    Alert("KubeKubeletNodeDown", 'up{job="kubelet"} == 0', "1h", "warning", "nodes",
          "The kubelet of {{ $labels.node }} has not been reached for an hour.", "shoot"),
    Alert("NodeExporterDown", _down(exporters.NODE_EXPORTER), "1h", "warning", exporters.NODE_EXPORTER,
          "No node-exporter answers: the resource usage of nodes is unknown.", "shoot"),
    Alert("KubeStateMetricsShootDown", _down(kube_state_metrics.NAME), "15m", "info", "kube-state-metrics-shoot",
          "kube-state-metrics does not answer: the state of pods in kube-system is unknown.", "shoot", "operator"),
    Alert("KubePodPendingShoot", f'kube_pod_status_phase{{job="{kube_state_metrics.NAME}",phase="Pending"}} == 1', "1h",
          "warning", "kube-kubelet", "Pod {{ $labels.namespace }}/{{ $labels.pod }} has been pending for an hour.",
          "shoot", "owner"),
    Alert("BlackboxK8sServiceCheckDown", 'probe_success{job="blackbox-exporter-k8s-service-check"} == 0', "15m",
          "warning", exporters.BLACKBOX_EXPORTER, "Pods cannot reach the API server through its Service.", "shoot"),
    Alert("KubeletTooManyOpenFileDescriptorsShoot",
          '100 * max by (node) (process_open_fds{job="kubelet"} / process_max_fds{job="kubelet"}) > 50',
          "30m", "warning", "kubelet",
          "The kubelet of {{ $labels.node }} uses {{ $value }} % of its file descriptors.", "shoot"),
    Alert("KubePersistentVolumeUsageCritical", f"100 * {_LEFT} < 5", "1h", "critical", "kubelet",
          f"The volume of {_CLAIM} has {{{{ $value }}}} % left.", "shoot", "owner"),
    Alert("KubePersistentVolumeFullInFourDays",
          f"100 * {_LEFT} < 15 and predict_linear(kubelet_volume_stats_available_bytes[30m], 4 * 24 * 3600) <= 0",
          "1h", "warning", "kubelet", f"The volume of {_CLAIM} will be full within four days at its present rate.",
          "shoot", "owner"),
)  # fmt: skip


def _vpn(servers: Sequence[str]) -> Iterator[Alert]:
    clients = f'envoy_cluster_membership_healthy{{job=~"{"|".join(servers)}",envoy_cluster_name="shoot"}}'
    yield Alert("VPNShootNoPods", f"(sum({clients}) or vector(0)) == 0", "30m", "critical", "vpn",
                "No client of the VPN answers: the API server reaches no nodes, pods and webhooks.",
                "shoot", "operator")  # fmt: skip
    if len(servers) > 1:
        yield Alert("VPNServerLost", f"count({clients} > 0) < {len(servers)}", "30m", "warning", "vpn",
                    "A VPN server does not answer, or has no client. The other one carries all requests.",
                    visibility="operator")  # fmt: skip


def _etcd() -> Iterator[Alert]:
    for role, severity, held in (("Main", "blocker", "the cluster's state"), ("Events", "critical", "events")):
        job = f"etcd-{role.lower()}"
        leaders = f'etcd_server_has_leader{{job="{job}"}}'
        yield Alert(f"KubeEtcd{role}Down", _down(job), "5m", severity, "etcd", f"The etcd with {held} does not answer.")
        yield Alert(f"KubeEtcd3{role}NoLeader", f"sum({leaders}) < count({leaders})", "10m", "critical", "etcd",
                    f"Members of {job} have no leader.", visibility="operator")  # fmt: skip
    size = 'etcd_mvcc_db_total_size_in_bytes{job=~"etcd-.*"}'
    yield Alert("KubeEtcd3DbSizeLimitApproaching", f"{size} > {_DATABASE_LIMIT * 7 // 8}", "0m", "warning", "etcd",
                "{{ $labels.job }} holds {{ $value | humanize1024 }}B, and accepts no writes at 8GiB.")  # fmt: skip
