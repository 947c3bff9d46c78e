"""Inputs and results of workflows and activities, and the annotations and records that processes exchange."""
