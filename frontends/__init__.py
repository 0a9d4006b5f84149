"""Frontends: adapter files for torch and JAX. All use of their private APIs is in this folder."""
