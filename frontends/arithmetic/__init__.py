"""Arithmetic that the lowerings of both frameworks use: erfc, complex pairs, storage types.

Imports no other room of the frontends, and no framework.
"""
