"""The resource manager: keeps the objects of ManagedResources applied in a target cluster.

One per shoot, in its control-plane namespace, and one per seed. Also requests tokens for
components that live beside the shoot's API server, and approves certificates of its nodes.
"""

from workers.resource_manager.process import run

__all__ = ["run"]
