"""Other people's history, as lines of the interchange file.

A reader knows one format and nothing of the archive: it yields what ``archive`` imports
(``docs/interchange.md``), with the place where a person would look for it. ``opening``
has the files of what was given, ``running`` says by their content which reader they
are for, ``running`` imports it all.
"""
