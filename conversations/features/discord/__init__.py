"""Discord. Imported by the command ``discord`` only: discord.py is an optional extra."""
