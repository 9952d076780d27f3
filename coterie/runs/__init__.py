"""A run's folder: written, read, checkpointed, journalled."""
