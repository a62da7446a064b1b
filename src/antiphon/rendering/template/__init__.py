"""Chat templates: from a conversation to the text of a prompt."""
