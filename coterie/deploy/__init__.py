"""Between organisations, whatever carries the messages."""
