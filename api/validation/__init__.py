"""Validation: pure functions that return the faults of an object, each with the path of its field.

Rules that a schema can express are at the fields of the models; the rules here need several fields, the old object, or
other objects.
"""
