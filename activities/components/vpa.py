"""The vertical pod autoscaler of a Shoot: it sets resource requests of pods according to their use.

Its three programs run in the control plane. The first one recommends requests. The second one evicts pods whose
requests differ much from the recommendation. The API server calls the third one, by a webhook, for each new pod, and
gives the pod the recommended requests. Flags, names and the webhook's settings: as Gardener's.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from activities.components import base, connections
from activities.components.base import Manifest
from api import images
from api.constants import AUTOSCALING
from api.core.v1beta1.shoot import VerticalPodAutoscaler
from api.crds import crds

RECOMMENDER, UPDATER, ADMISSION_CONTROLLER = NAMES = ("vpa-recommender", "vpa-updater", "vpa-admission-controller")
SERVICE = "vpa-webhook"
"""Service of the webhook in the control plane's namespace; the API server calls the webhook by this name."""
WEBHOOK = "vpa-webhook-config-target"

_PORT = 10250
_HEALTH_PORTS = {RECOMMENDER: 8942, UPDATER: 8943, ADMISSION_CONTROLLER: 8944}
_TLS = "/etc/tls-certs"
_PERCENTILES = (
    "target_cpu_percentile",
    "recommendation_lower_bound_cpu_percentile",
    "recommendation_upper_bound_cpu_percentile",
    "target_memory_percentile",
    "recommendation_lower_bound_memory_percentile",
    "recommendation_upper_bound_memory_percentile",
)
# The flag of a setting has the setting's name with dashes.
_SETTINGS = {
    RECOMMENDER: (
        "recommendation_margin_fraction",
        "recommender_interval",
        *_PERCENTILES,
        "cpu_histogram_decay_half_life",
        "memory_histogram_decay_half_life",
        "memory_aggregation_interval",
        "memory_aggregation_interval_count",
    ),
    UPDATER: (
        "evict_after_oom_threshold",
        "eviction_rate_burst",
        "eviction_rate_limit",
        "eviction_tolerance",
        "updater_interval",
    ),
    ADMISSION_CONTROLLER: (),
}
_READ = "get list watch"


@dataclass(frozen=True)
class Autoscaler:
    namespace: str
    generic_kubeconfig: str
    server: str
    """Names of Secrets."""
    settings: VerticalPodAutoscaler
    replicas: int = 1
    failure_tolerance: str | None = None
    """``node`` or ``zone``: the replicas are spread over nodes, or over nodes and zones."""


def host(namespace: str) -> str:
    """Host name under which the API server calls the webhook."""
    return f"{SERVICE}.{namespace}"


def programs(autoscaler: Autoscaler) -> list[list[Manifest]]:
    """Everything in the seed, for each of the three programs in the order to apply."""
    webhook = connections.annotated(
        base.service(
            SERVICE, autoscaler.namespace, select=_select(ADMISSION_CONTROLLER), ports={"https": (443, _PORT)}
        ),
        connections.called_as_webhook(_PORT),
    )
    return [
        [
            base.shoot_access(name, autoscaler.namespace),
            base.pod_disruption_budget(name, autoscaler.namespace, _select(name)),
            *([webhook] if name == ADMISSION_CONTROLLER else []),
            _deployment(name, autoscaler),
        ]
        for name in NAMES
    ]


def _select(name: str) -> dict[str, str]:
    return base.control_plane_labels(name)


def _deployment(name: str, autoscaler: Autoscaler) -> Manifest:
    health = _HEALTH_PORTS[name]
    mounts = {"kubeconfig": base.KUBECONFIG_DIR}
    ports = {"metrics": health}
    volumes = [base.shoot_access_volume(name, autoscaler.generic_kubeconfig)]
    probes = base.probes("/health-check", health, scheme="HTTP", every=10)
    if name == ADMISSION_CONTROLLER:
        mounts["tls"] = _TLS
        ports["https"] = _PORT
        volumes.append(base.secret_volume("tls", autoscaler.server, "tls.crt", "tls.key"))
        # The program reports healthy before it listens. A probe that only connects causes an error in the log, so this
        # probe runs only during the start.
        listens = {"tcpSocket": {"port": _PORT}, "periodSeconds": 1, "failureThreshold": 120}
        probes["startupProbe"] = listens
    main = base.container(
        name,
        images.vpa(name),
        [f"/{name.removeprefix('vpa-')}", *sorted(f"--{flag}={value}" for flag, value in _flags(name, autoscaler))],
        cpu="10m",
        memory="30Mi",
        mounts=mounts,
        ports=ports,
        terminationMessagePolicy="FallbackToLogsOnError",
        **probes,
    )
    return base.control_plane_deployment(
        name,
        autoscaler.namespace,
        select=_select(name),
        replicas=autoscaler.replicas,
        pod_labels=connections.SHOOT_API,
        pod={
            "automountServiceAccountToken": False,
            "securityContext": base.non_root_pod(),
            "topologySpreadConstraints": base.spread(_select(name), autoscaler.failure_tolerance),
            "terminationGracePeriodSeconds": 5,  # the updater does not end when it is asked
            "containers": [main],
            "volumes": volumes,
        },
    )


def _flags(name: str, autoscaler: Autoscaler) -> list[tuple[str, str]]:
    settings = autoscaler.settings
    flags: dict[str, Any] = {
        "address": f":{_HEALTH_PORTS[name]}",
        "kubeconfig": base.KUBECONFIG_PATH,
        "kube-api-qps": 100,
        "kube-api-burst": 120,
        "v": 2,
        **{setting.replace("_", "-"): getattr(settings, setting) for setting in _SETTINGS[name]},
    }
    if name == RECOMMENDER:
        flags |= {
            "memory-saver": "true",
            "pod-recommendation-min-cpu-millicores": 5,
            "pod-recommendation-min-memory-mb": 10,
            "update-worker-count": settings.recommender_update_worker_count,
        }
        for resource, most in (settings.max_allowed or {}).items():
            flags[f"container-recommendation-max-allowed-{resource}"] = most
    if name == UPDATER:
        flags["min-replicas"] = 1
    if name == ADMISSION_CONTROLLER:
        flags |= {
            "port": _PORT,
            "register-webhook": "false",
            "tls-cert-file": f"{_TLS}/tls.crt",
            "tls-private-key": f"{_TLS}/tls.key",
        }
    else:
        flags["leader-elect"] = "true"
    if gates := settings.feature_gates:
        flags["feature-gates"] = ",".join(f"{gate}={str(on).lower()}" for gate, on in sorted(gates.items()))
    return [(flag, _text(value)) for flag, value in flags.items() if value is not None]


def _text(value: Any) -> str:
    # A number of the settings may be 1 or 1.0: the text must be the same, so that pods are not rolled.
    return f"{value:g}" if isinstance(value, float) else str(value)


# In the shoot


def shoot_objects(namespace: str, ca_bundle: bytes) -> list[Manifest]:
    """Objects for a ManagedResource: CRDs, rights of the programs' tokens, and the webhook.

    The API server verifies the webhook with ``ca_bundle``.
    """
    rules: Mapping[str, list[Manifest]] = {
        RECOMMENDER: [
            *_watched(),
            base.rule("core", "events", _READ),
            base.rule("metrics.k8s.io", "pods", "get list"),
            base.rule(AUTOSCALING, "verticalpodautoscalers/status", "get patch"),
            base.rule(AUTOSCALING, "verticalpodautoscalercheckpoints", f"{_READ} create patch delete"),
        ],
        UPDATER: [
            *_watched(),
            base.rule("core events.k8s.io", "events", "create patch update"),
            base.rule("core", "pods/eviction", "create"),
            base.rule("core", "pods pods/resize", "patch"),
        ],
        ADMISSION_CONTROLLER: _watched(),
    }
    # By this Lease the updater knows whether new pods get the recommended requests. If they do not, an eviction would
    # have no effect.
    status = (ADMISSION_CONTROLLER,)
    leases = {
        RECOMMENDER: [_lease("create"), _lease("get watch update", "vpa-recommender-lease")],
        UPDATER: [_lease("create"), _lease("get watch update", UPDATER), _lease("get", *status)],
        ADMISSION_CONTROLLER: [_lease("create"), _lease("get watch update", *status)],
    }
    made = [*crds("autoscaled shoot"), _webhook(namespace, ca_bundle)]
    for name in NAMES:
        right = f"gardener.cloud:vpa:target:{name}"
        subjects = [base.account(name)]
        made += [
            base.service_account(name, "kube-system"),
            base.cluster_role(right, rules[name]),
            base.binding(right, subjects, cluster_role=right),
            base.role(right, "kube-system", leases[name]),
            base.binding(right, subjects, role=right, namespace="kube-system"),
        ]
    return made


def _watched() -> list[Manifest]:
    """Objects that all three programs read: pods, the controllers that create pods, and VerticalPodAutoscalers."""
    return [
        base.rule("core", "pods nodes limitranges replicationcontrollers", _READ),
        base.rule("apps", "daemonsets deployments replicasets statefulsets", _READ),
        base.rule("batch", "jobs cronjobs", _READ),
        base.rule("*", "*/scale", "get watch"),
        base.rule(AUTOSCALING, "verticalpodautoscalers", _READ),
    ]


def _lease(verbs: str, *names: str) -> Manifest:
    return base.rule("coordination.k8s.io", "leases", verbs, names)


def _webhook(namespace: str, ca_bundle: bytes) -> Manifest:
    def on(group: str, version: str, resource: str, *operations: str) -> Manifest:
        return {
            "apiGroups": [group],
            "apiVersions": [version],
            "resources": [resource],
            "operations": list(operations),
            "scope": "*",
        }

    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": base.metadata(WEBHOOK, labels={"remediation.webhook.shoot.gardener.cloud/exclude": "true"}),
        "webhooks": [
            {
                "name": "vpa.k8s.io",
                "admissionReviewVersions": ["v1"],
                "clientConfig": {
                    "url": f"https://{host(namespace)}:443",
                    "caBundle": base64.b64encode(ca_bundle).decode(),
                },
                # If the webhook does not answer, pods start with the requests that they have.
                "failurePolicy": "Ignore",
                "matchPolicy": "Exact",
                "reinvocationPolicy": "Never",
                "sideEffects": "None",
                "timeoutSeconds": 10,
                "rules": [
                    on("", "v1", "pods", "CREATE"),
                    on(AUTOSCALING, "*", "verticalpodautoscalers", "CREATE", "UPDATE"),
                ],
            }
        ],
    }
