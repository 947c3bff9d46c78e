"""Which Shoots' nodes send their logs to a store in the seed, and the store's host name.

Two tasks need the same answer: one deploys the store, the other one configures the nodes.
"""

from dataclasses import dataclass

from activities.clusters import ClusterView
from activities.seed.facts import is_observed
from api.decisions import dual_stack
from api.decisions.seeds import ingress_domain_of
from api.names import ingress_host, project_and_shoot

PREFIX = "v"
"""Begin of the store's host name in the ingress domain of the seed."""


@dataclass(frozen=True)
class NodeLogs:
    """The part of the gardenlet's configuration that is about logs of nodes."""

    purposes: frozenset[str] = frozenset()
    """Purposes of Shoots whose nodes send their logs; none: no Shoot's."""

    def wanted(self, view: ClusterView) -> bool:
        """Whether the nodes of a Shoot send their logs.

        Names in the ingress domain of the seed have addresses of IPv4 alone, which nodes with IPv6 alone do not reach.
        """
        return (
            is_observed(view)
            and view.shoot["spec"].get("purpose") in self.purposes
            and not view.workerless
            and not dual_stack.is_ipv6_alone(view.shoot)
        )


def host(view: ClusterView, technical_id: str) -> str:
    """Host name of the store in the ingress domain of the seed."""
    return ingress_host(PREFIX, *project_and_shoot(technical_id), ingress_domain_of(view.seed))
