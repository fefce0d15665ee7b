"""``conversation_recall``: what is asked, what is read for it, and how it is quoted."""
