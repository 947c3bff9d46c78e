"""What is wrong with an object, as lists of faults with field paths. Pure functions.

What one schema can say stands at the fields of the models; here is what needs several fields, the
object before, or other objects.
"""
