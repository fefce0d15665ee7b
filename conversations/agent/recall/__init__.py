"""What the actions of ``conversation_recall`` do: a module for each."""
