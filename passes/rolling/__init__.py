"""What `roll` is made of."""
