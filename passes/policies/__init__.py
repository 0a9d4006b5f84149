"""Policies: which steps a kind of group takes on a target, and why."""
