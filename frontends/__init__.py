"""Frontends: one adapter file per framework, which holds all use of its private API."""
