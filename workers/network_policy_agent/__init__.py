"""Enforces the NetworkPolicies of one cluster on one node, by rules of nftables.

``policies`` computes the rules, ``table`` writes them into the kernel, ``cni_plugin`` announces new pods, ``process``
runs.
"""

from workers.network_policy_agent.process import run

__all__ = ["run"]
