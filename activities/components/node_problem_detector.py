"""node-problem-detector of a shoot: it reports problems in the kernel's log as conditions of the Node and as Events.

Machines whose Node has one of these conditions are replaced; see ``workers.machine_controller_manager.nodes``.
"""

from typing import Any

from activities.components import base
from activities.components.base import Manifest
from api import images

NAME = "node-problem-detector"
NAMESPACE = "kube-system"
SELECT = {"app": NAME}

_KERNEL_LOG = "/dev/kmsg"
_MONITOR = "kernel-monitor.json"
_CONFIG = "/config"
_PORT = 20256

_CONDITIONS = (
    ("KernelDeadlock", "KernelHasNoDeadlock", "kernel has no deadlock"),
    ("ReadonlyFilesystem", "FilesystemIsNotReadOnly", "Filesystem is not read-only"),
)
"""Type of each condition, with reason and message of a healthy node: the same as upstream, since alerts use them."""
_LASTING = (
    ("KernelDeadlock", "DockerHung", r"task docker:\w+ blocked for more than \w+ seconds\."),
    ("ReadonlyFilesystem", "FilesystemIsReadOnly", r"Remounting filesystem read-only"),
)
_PASSING = (
    ("OOMKilling", r"Killed process \d+ (.+) total-vm:\d+kB, anon-rss:\d+kB, file-rss:\d+kB.*"),
    ("TaskHung", r"task [\S ]+:\w+ blocked for more than \w+ seconds\."),
    ("UnregisterNetDevice", r"unregister_netdevice: waiting for \w+ to become free. Usage count = \d+"),
    ("KernelOops", r"BUG: (unable to handle )?(kernel NULL pointer dereference|kernel paging request|page fault).*"),
    ("KernelOops", r"divide error: 0000 \[#\d+\] .*SMP.*"),
    ("Ext4Error", r"EXT4-fs error .*"),
    ("IOError", r"Buffer I/O error .*"),
    ("MemoryReadError", r"CE memory read error .*"),
)
"""Problems that are reported as Events only and replace no machine.

All patterns are matched up to the end of a message.
"""


def objects(api_server: str) -> list[Manifest]:
    """Objects of the shoot, for a ManagedResource.

    ``api_server``: name of the API server. A node whose Services do not work must be reported, too.
    """
    config = base.versioned_config_map(NAME, NAMESPACE, {_MONITOR: base.to_json(_kernel_monitor())}, labels=SELECT)
    rules = [
        base.rule("core", "nodes", "get"),
        base.rule("core", "nodes/status", "patch"),
        base.rule("core events.k8s.io", "events", "create patch update"),
    ]
    role = f"gardener.cloud:monitoring:{NAME}"
    return [
        base.service_account(NAME, NAMESPACE),
        base.cluster_role(role, rules),
        base.binding(role, [base.account(NAME)], cluster_role=role),
        config,
        _daemon_set(config, api_server),
    ]


def _kernel_monitor() -> dict[str, Any]:
    """Configuration of the detector's monitor of system logs."""
    lasting = [
        {"type": "permanent", "condition": condition, "reason": reason, "pattern": pattern}
        for condition, reason, pattern in _LASTING
    ]
    passing = [{"type": "temporary", "reason": reason, "pattern": pattern} for reason, pattern in _PASSING]
    return {
        "plugin": "kmsg",
        "logPath": _KERNEL_LOG,
        # Ignore messages from before the start: a machine that replaces another one on the same kernel would report
        # the problems of the other machine.
        "lookback": "0",
        "bufferSize": 10,
        "source": "kernel-monitor",
        "conditions": [{"type": type_, "reason": reason, "message": text} for type_, reason, text in _CONDITIONS],
        "rules": [*passing, *lasting],
    }


def _daemon_set(config: Manifest, api_server: str) -> Manifest:
    labels = {**SELECT, "gardener.cloud/role": "system-component"}
    main = base.container(
        NAME,
        images.NODE_PROBLEM_DETECTOR,
        [
            "/node-problem-detector",
            f"--config.system-log-monitor={_CONFIG}/{_MONITOR}",
            f"--port={_PORT}",
            # No port for metrics, because no component reads them: nodes of a shoot are not reachable from outside.
            "--prometheus-port=0",
        ],
        cpu="20m",
        memory="20Mi",
        mounts={"config": _CONFIG, "kernel-log": _KERNEL_LOG},
        env=[
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "KUBERNETES_SERVICE_HOST", "value": api_server},
            {"name": "KUBERNETES_SERVICE_PORT", "value": "443"},
        ],
        # The detector reads the kernel's log.
        security={"privileged": True, "runAsUser": 0},
        # The detector answers once it has read its Node.
        **base.probes("/healthz", _PORT, scheme="HTTP", host="127.0.0.1", every=10),
    )
    return base.daemon_set(
        NAME,
        NAMESPACE,
        select=SELECT,
        labels=labels,
        max_unavailable="100%",
        pod={
            "serviceAccountName": NAME,
            "automountServiceAccountToken": True,
            "containers": [main],
            "volumes": [
                base.config_map_volume("config", config["metadata"]["name"]),
                {"name": "kernel-log", "hostPath": {"path": _KERNEL_LOG, "type": "CharDevice"}},
            ],
        },
    )
