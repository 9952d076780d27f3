"""Preparing a study and running it."""
