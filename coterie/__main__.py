"""`python -m coterie`."""

from coterie.commands.main import command

command()
