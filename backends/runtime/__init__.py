"""The runtime of all our own backends: a program is a plan of values and steps on one device."""
