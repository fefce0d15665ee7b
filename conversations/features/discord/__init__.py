"""The Discord bot. Only its command imports the modules that need discord.py, an optional extra."""
