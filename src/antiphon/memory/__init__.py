"""Memory strategies: chooses the messages of a conversation that the model sees. No module here does I/O."""
