"""Policies: the list of steps for a kind of group on a target, with reasons."""
