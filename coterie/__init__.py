"""Personalized federated learning: every silo its own model, trained with the silos that are like it."""

__version__ = "0.1.0"
