"""Errors for users of the landscape."""

import click


class LandscapeError(click.ClickException):
    """An error that a user can correct; the CLI prints its message without traceback."""
