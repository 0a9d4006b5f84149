"""Exact rewrite rules that canonicalize and layout apply: no bit of a result changes."""
