"""Solutions, one file for each exercise. Try first."""
