"""Care for the shoots of a seed: checks that write conditions and constraints into their status, and small repairs.

Care is no workflow: it reads objects and writes what it has found. ``checks``, ``constraints``, ``webhooks`` and
``garbage`` decide, as functions of the objects read. ``api.decisions.conditions`` decides how that changes a status.
``controller`` reads and writes. ``watchdog`` stops controllers that would do harm; ``weeder`` restarts pods
that need not wait any longer. Source: spec/flows.md 10.
"""

from workers.gardenlet.care.controller import CareController
from workers.gardenlet.care.watchdog import Watchdog
from workers.gardenlet.care.weeder import Weeder

__all__ = ["CareController", "Watchdog", "Weeder"]
