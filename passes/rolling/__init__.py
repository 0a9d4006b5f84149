"""Parts of pass `roll`."""
