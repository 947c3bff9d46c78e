"""The resource manager: keeps the objects of ManagedResources applied in a target cluster.

There is one for each shoot, in its control-plane namespace, and one for each seed. It also requests tokens for
components that run beside the shoot's API server, and approves certificates of the shoot's nodes.
"""

from workers.resource_manager.process import run

__all__ = ["run"]
