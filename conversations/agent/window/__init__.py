"""The window: the turns that the model is given, and the manifest that records the choice."""
