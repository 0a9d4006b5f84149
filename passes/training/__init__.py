"""Joint forward and backward pass in one function, and its partition: parts of ``partition``."""
