"""The server of the subresources that a custom resource cannot have: kubeconfigs, bindings of Shoots, tokens.

The garden's front door sends it the requests to ``shoots/adminkubeconfig``, ``shoots/viewerkubeconfig``,
``shoots/binding`` and ``workloadidentities/token``. Source: spec/credentials.md 8, spec/api-core.md 9.
"""

from workers.subresources.process import run

__all__ = ["run"]
