"""Frontends for torch and JAX: capture, import, calls. All use of their private APIs is here."""
