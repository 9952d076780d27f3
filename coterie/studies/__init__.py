"""A study: a TOML file, checked, every default written back."""
