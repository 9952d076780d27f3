"""One silo's model in use."""
