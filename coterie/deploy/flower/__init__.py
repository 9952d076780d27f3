"""Real silos: the same methods between organisations, over Flower."""
