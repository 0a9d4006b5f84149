"""Helpers of all lowerings to kernels: sizes, types, and the roles of a dot's axes."""
