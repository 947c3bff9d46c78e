"""The server of the subresources that a custom resource cannot have: kubeconfigs and bindings of Shoots.

The garden's front door sends it the requests to ``shoots/adminkubeconfig``, ``shoots/viewerkubeconfig`` and
``shoots/binding``. Source: spec/credentials.md 8, spec/api-core.md 9.
"""

from workers.subresources.process import run

__all__ = ["run"]
