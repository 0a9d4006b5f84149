"""Analyses and rewrites of Dynamo graphs before they are traced to ATen ops.

Imports the room `importer`, for source lines, errors and layouts.
"""
