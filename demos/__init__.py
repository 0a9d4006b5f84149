"""Demos: runnable stories that end in a measured or checked result."""
