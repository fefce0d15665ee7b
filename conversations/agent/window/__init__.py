"""The window: the turns that the model is given, and the record of the choice."""
