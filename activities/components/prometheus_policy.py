"""Admission policy of a Shoot: its Prometheus reads metrics of nodes through the API server, and nothing else of them.

Only the API server reaches nodes from a control plane, so Prometheus needs the right `nodes/proxy`. RBAC cannot limit
the paths of that right, and with it a kubelet shows logs and specs of all its pods. The API server calls admission for
each request to proxy, as CONNECT with the path.

The policy restricts only requests through the API server. A kubelet that is reached directly, from the network of the
Shoot, checks only the right. With this right, a client can run a command in any pod by a websocket that `GET` opens.
"""

from typing import Any

from activities.components import exporters

NAME = "prometheus-shoot.gardener.cloud"
KUBELET_PATHS = ("metrics", "metrics/cadvisor")
NODE_EXPORTER_PATH = "metrics"

_API = "admissionregistration.k8s.io/v1"


def objects(user: str) -> list[dict[str, Any]]:
    """The policy and its binding. ``user``: user name of Prometheus at the API server."""
    return [
        {"apiVersion": _API, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": NAME}, "spec": _policy(user)},
        {
            "apiVersion": _API,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": NAME},
            "spec": {"policyName": NAME, "validationActions": ["Deny"]},
        },
    ]


def _policy(user: str) -> dict[str, Any]:
    rule = {"apiGroups": [""], "apiVersions": ["*"], "operations": ["CONNECT"], "resources": ["nodes/proxy"]}
    kubelet = [f"/{path}" for path in KUBELET_PATHS]
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "prometheus", "expression": f"request.userInfo.username == '{user}'"}],
        "variables": [{"name": "path", "expression": "object.?path.orValue('')"}],
        "validations": [
            {
                # A name with a colon selects another port or another protocol than those of the kubelet.
                "expression": f"(!request.name.contains(':') && variables.path in {kubelet})"
                f" || (request.name.matches('^[^:]+:{exporters.NODE_EXPORTER_PORT}$')"
                f" && variables.path == '/{NODE_EXPORTER_PATH}')",
                "message": "Prometheus reads metrics of kubelets and of node-exporter only",
                "reason": "Forbidden",
            }
        ],
    }
