"""Admission policy of a Shoot: a node agent writes to its own Node and its own Lease, and to no others.

The node-agent authorizer of the resource manager decides which objects a node agent may write. This policy also limits
what it changes of its Node, and works without the resource manager. A Machine and its Node have one name, and the user
name of a node agent holds the name of its Machine: so the policy needs no other object.
"""

from typing import Any

from activities.components.operating_system_config import CHECKSUM_APPLIED
from api import constants
from api.machine import in_place

NAME = "gardener-node-agent.gardener.cloud"
LEASE_PREFIX = "gardener-node-agent-"

_USER = constants.NODE_AGENT_USER_PREFIX
_ANNOTATIONS = (
    CHECKSUM_APPLIED,
    constants.CERTIFICATE_ISSUERS,
    constants.REFUSED_CONFIGURATION,
    in_place.FAILED_REASON,
)
"""Annotations that a node agent writes to its Node; it also writes the labels in ``_LABELS``."""
_LABELS = (constants.WORKER_KUBERNETES_VERSION, in_place.RESULT)
_API = "admissionregistration.k8s.io/v1"
_IS_NODE = "request.resource.resource == 'nodes'"
_NAME_OF_OBJECT = "(request.operation == 'DELETE' ? oldObject : object).metadata.name"


def objects() -> list[dict[str, Any]]:
    """The policy and its binding."""
    return [
        {"apiVersion": _API, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": NAME}, "spec": _policy()},
        {
            "apiVersion": _API,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": NAME},
            "spec": {"policyName": NAME, "validationActions": ["Deny"]},
        },
    ]


def _policy() -> dict[str, Any]:
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [_rule("", "nodes", "nodes/*"), _rule("coordination.k8s.io", "leases")],
        },
        "matchConditions": [
            {
                "name": "node-agents",
                "expression": f"'{constants.NODE_AGENTS_GROUP}' in request.userInfo.?groups.orValue([])"
                f" || request.userInfo.username.startsWith('{_USER}')",
            }
        ],
        "variables": [
            {"name": "machine", "expression": f"request.userInfo.username.replace('{_USER}', '')"},
            *(
                {"name": f"{age}{field.title()}", "expression": f"{source}.metadata.?{field}.orValue({{}})"}
                for age, source in (("old", "oldObject"), ("new", "object"))
                for field in ("labels", "annotations")
            ),
        ],
        "validations": [
            _validation(
                f"request.userInfo.username.startsWith('{_USER}')", "the user name must be that of a node agent"
            ),
            _validation(
                f"{_IS_NODE} || (request.namespace == 'kube-system' && request.operation in ['CREATE', 'UPDATE']"
                f" && {_NAME_OF_OBJECT} == '{LEASE_PREFIX}' + variables.machine)",
                f"a node agent writes to its own Lease kube-system/{LEASE_PREFIX}<node> only",
            ),
            _of_node(
                f"request.operation == 'UPDATE' && {_NAME_OF_OBJECT} == variables.machine",
                "a node agent changes its own Node only",
            ),
            _of_node(
                "request.?subResource.orValue('') == '' && object.?spec == oldObject.?spec"
                " && object.metadata.?finalizers == oldObject.metadata.?finalizers"
                " && object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences",
                "a node agent changes labels and annotations of its Node only",
            ),
            _of_node(
                _unchanged("Labels", _LABELS, removable=()),
                f"a node agent writes of its Node's labels only {', '.join(_LABELS)}",
            ),
            _of_node(
                _unchanged("Annotations", _ANNOTATIONS, removable=(constants.RESTART_SYSTEMD_SERVICES,)),
                f"a node agent writes of its Node's annotations only {', '.join(_ANNOTATIONS)}, "
                f"and removes {constants.RESTART_SYSTEMD_SERVICES}",
            ),
        ],
    }


def _unchanged(field: str, written: tuple[str, ...], removable: tuple[str, ...]) -> str:
    """CEL expression: all entries but the named ones are unchanged."""
    old, new = f"variables.old{field}", f"variables.new{field}"
    return (
        f"{new}.all(key, key in {list(written)} || (key in {old} && {old}[key] == {new}[key]))"
        f" && {old}.all(key, key in {list(written + removable)} || key in {new})"
    )


def _of_node(expression: str, message: str) -> dict[str, Any]:
    return _validation(f"!({_IS_NODE}) || ({expression})", message)


def _validation(expression: str, message: str) -> dict[str, Any]:
    return {"expression": expression, "message": message, "reason": "Forbidden"}


def _rule(group: str, *kinds: str) -> dict[str, Any]:
    operations = ["CREATE", "UPDATE", "DELETE"]
    return {"apiGroups": [group], "apiVersions": ["*"], "operations": operations, "resources": list(kinds)}
