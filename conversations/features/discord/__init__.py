"""Discord. Imported by the command ``discord`` only: discord.py is an optional extra.

::

    bot        what the gateway tells: messages, buttons, commands, connections
    inbox      places, each with its messages in order, also those it was away for
    taking     one message: who wrote it, what is attached, which session it belongs to
    replies    a run's answer as messages that are posted once and edited
    posting    one message to Discord: sent, edited, removed
    trying     again, for as long as it may go well later
    items      what those messages say, made from rows and draft
    service    all of it in one process, with a runtime
"""
