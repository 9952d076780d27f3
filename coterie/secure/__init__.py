"""Arithmetic on numbers that the server cannot read: fixed point, masks, sketches, shares of a secret."""
