"""What the compiler knows of a program, as one web page that opens from disk."""
