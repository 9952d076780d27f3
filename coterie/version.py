"""Which Coterie this is."""

VERSION = "0.1.0"
