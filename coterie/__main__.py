"""`python -m coterie`."""

from coterie.cli import command

command()
