"""Names of provider-local's objects in a seed. Its chart creates them and grants its rights: ``charts/provider-local``.

In the whole seed, provider-local has rights on its own kinds only. The gardenlet binds the role of provider-local in
each control-plane namespace, and gives it access to single Secrets of namespace garden by name
(``activities.seed.extension_access``).
"""

from typing import Any

from activities.provider_local.computers import PRIORITY_CLASS

NAME = "gardener-extension-provider-local"
"""Name of provider-local's ServiceAccount, and of the Lease for its leader election."""
GATEWAY_SERVICE = "istio-ingressgateway"
"""Name of the Services of a seed's gateways."""
GATEWAY_NAMESPACE = "istio-ingress"
"""Namespace of the seed's own gateway, whose Service gets the address of the seed's node."""


def priority_class() -> dict[str, Any]:
    """The PriorityClass of machines and bastions. The chart has it, too: a seed may itself be their cloud."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": PRIORITY_CLASS},
        "value": 999998950,
        "globalDefault": False,
        "preemptionPolicy": "Never",
        "description": "Computers of the local cloud.",
    }
