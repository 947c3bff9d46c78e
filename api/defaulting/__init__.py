"""Defaults of fields that the author of an object left out. Pure functions that change the object in place.

Static defaults stand at the fields of the models; the API server sets them itself.
"""
