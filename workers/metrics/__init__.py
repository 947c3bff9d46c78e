"""What our processes count and measure, for Prometheus: served at ``/metrics`` of each.

``flows``: operations and their tasks, by who works on them. ``requests``: what we ask API servers. ``garden``: the
state of Shoots, Seeds and Projects, under the names of Gardener's metrics exporter. All of them, and boards and alerts
made of them: docs/observability.md.
"""
