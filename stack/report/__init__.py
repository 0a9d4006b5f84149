"""A web page of everything the compiler knows about a program; it opens from disk."""
