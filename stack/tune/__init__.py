"""Autotuning: the candidates of a pass are timed on the device, and the fastest is kept."""
