"""The derivation behind the pass `stream`, in three steps: normal, action, build."""
