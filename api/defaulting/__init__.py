"""What an object gets that its author left out. Pure functions that change the object in place.

Static defaults stand at the fields of the models; the API server sets them itself.
"""
