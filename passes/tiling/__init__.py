"""What all tilers share: sizes and types, the roles of a dot's axes."""
