"""Thin watchers: they translate an event to a signal, and decide nothing."""
