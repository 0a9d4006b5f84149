"""Properties of a jaxpr and its arrays: sizes, source lines, names, shardings, settings.

Imports no other room.
"""
