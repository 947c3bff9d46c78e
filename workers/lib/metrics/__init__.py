"""Metrics of our processes, for Prometheus; each process serves them at ``/metrics``.

``flows``: operations and their tasks, from the process that runs them. ``requests``: requests to API servers.
``garden``: the state of Shoots, Seeds and Projects, under the names of Gardener's metrics exporter.
docs/observability.md lists all metrics, and the boards and alerts that use them.
"""
