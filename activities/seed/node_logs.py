"""Which Shoots' nodes send their logs to a store in the seed, and the store's host name.

Two tasks need the same answer: one deploys the store, the other one configures the nodes.
"""

from dataclasses import dataclass

from activities.clusters import ClusterView
from api.constants import PURPOSE_TESTING
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

        The store needs what Prometheus needs, too: another purpose than ``testing``, and an ingress domain of the seed.
        Names in this domain have addresses of IPv4 alone, which nodes with IPv6 alone do not reach.
        """
        purpose = view.shoot["spec"].get("purpose")
        return (
            purpose in self.purposes
            and purpose != PURPOSE_TESTING
            and not view.workerless
            and bool(ingress_domain_of(view.seed))
            and not dual_stack.is_ipv6_alone(view.shoot)
        )


def host(view: ClusterView, technical_id: str) -> str:
    """Host name of the store in the ingress domain of the seed."""
    return ingress_host(PREFIX, *project_and_shoot(technical_id), ingress_domain_of(view.seed))
