"""Hosted operators: one folder per family."""
