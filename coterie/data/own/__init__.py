"""Your own silos: one file or folder each, brought to one form by what every silo declares of its columns."""
