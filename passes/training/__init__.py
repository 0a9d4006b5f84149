"""Forward and backward pass in one function, and where it is cut: what ``partition`` is made of."""
