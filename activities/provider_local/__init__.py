"""Actuators and activities of provider-local for each kind of the extension API. Workflows define their order."""
