"""Memory strategies choose the messages of a conversation that the model sees."""
