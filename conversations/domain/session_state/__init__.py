"""The session state: a register of what happened, by rules and without a model.

``facts`` reads from one turn what the rules need, ``fold`` adds it to the state,
``marks`` are a person's pins, strikes and rewordings of single items, ``items`` is
what of both is shown, ``document`` writes that as YAML, ``stored`` as JSON.

The state is a pure function of the session's active turns in order and of the
person's edits in order: turns never look at marks and marks never at turns, so
rebuilding from the archive gives the same bytes however the two were interleaved.
"""
