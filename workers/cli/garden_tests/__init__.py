"""Tests of a garden by its public API: what ``gardener test`` runs, with the labels of GEP-9.

``model`` names tests and selects them, ``context`` is what a test gets, ``runner`` runs them, ``dump`` writes the state
of all clusters after a failure, ``leftovers`` removes what a run has created. The tests are in ``default`` and
``changes``. They know nothing of a landscape: they use kubeconfigs alone.
"""
