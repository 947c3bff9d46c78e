"""Decisions as pure functions of objects and the time; they read and write nothing."""
