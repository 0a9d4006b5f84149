"""One runtime for the programs of all own backends: a plan of values and steps on one device."""
