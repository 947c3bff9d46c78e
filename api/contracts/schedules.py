"""Inputs of the workflows that a schedule starts, and of their activities."""

from datetime import datetime

from api.contracts.operations import ShootRef
from api.model import ApiModel


class ScheduledShoot(ApiModel):
    """Input of the workflow that a schedule starts."""

    shoot: ShootRef


class ScheduledTime(ApiModel):
    """Input of the activities that do the work that is due at a time."""

    shoot: ShootRef
    now: datetime
    """Start of the workflow, by the clock of the Temporal server; never before the time of the schedule."""
