"""Private names of frameworks, in one file for each: `torch_private` and `jax_private`.

No other file of the product reads one; `tests/packaging/test_private_names.py` checks this. Another
test resolves each name on the installed release, so that it reports which name a release lacks.
"""
