"""Admission: the server of the garden's webhooks and of the seed authorizer."""
