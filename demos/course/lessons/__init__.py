"""The lessons, in percent format: each a script, and a notebook by a command."""
