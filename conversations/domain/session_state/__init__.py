"""The session state: a register of what happened, by rules and without a model.

``facts`` reads from one turn what the rules need (``statements`` reads its sentences and
commands), ``fold`` adds it to the state. ``values`` is the state with a person's pins,
strikes and rewordings, and its JSON; ``document`` is what of it is shown, and its YAML.

The state is a pure function of the session's active turns in order and of the
person's edits in order: turns never look at marks and marks never at turns, so
rebuilding from the archive gives the same bytes however the two were interleaved.
"""
