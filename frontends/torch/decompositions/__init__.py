"""Decompositions of torch functions, where torch's own are wrong, slow or missing.

`replacement` puts them into a Dynamo graph before autograd sees it. Imports no other room.
"""
