"""What the processes of one server speak to each other with. Knows nothing of what they say."""
