"""What `distribute` makes loops of: chunks of lanes, packed panels, register tiles."""
