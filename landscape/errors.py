"""What a user of the landscape is told."""

import click


class LandscapeError(click.ClickException):
    """Something a user can act on: printed without traceback."""
