"""Wing `naming`: what a group of ops computes, in the field's words."""

from stack.naming.group_names import group_name

__all__ = ["group_name"]
