"""The tool ``conversation_recall``: its arguments, its queries and the format of its quotations."""
