"""Runs functions of the IR in torch, op by op or as a module of ATen ops.

Imports the room `tensors`.
"""
