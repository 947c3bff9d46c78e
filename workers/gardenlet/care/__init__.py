"""How the shoots of a seed are: conditions and constraints in their status, and what is put right without asking.

Not a workflow: it looks at objects and writes what it saw. ``checks``, ``constraints``, ``webhooks`` and ``garbage``
decide, as functions of what was seen, and ``api.conditions`` what that means for a status; ``controller`` looks and
writes; ``watchdog`` stops controllers that would do harm. Source: spec/flows.md 10.
"""

from workers.gardenlet.care.controller import CareController
from workers.gardenlet.care.watchdog import Watchdog

__all__ = ["CareController", "Watchdog"]
