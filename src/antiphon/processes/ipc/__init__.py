"""Communication between the processes of one server, independent of what they send."""
