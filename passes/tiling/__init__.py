"""What all tilers share: loops and indices of a kernel, the roles of a dot's axes."""
