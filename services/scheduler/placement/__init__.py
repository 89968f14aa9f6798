"""Which devices: `capacity` knows what is free, `choose` picks. Pure."""
