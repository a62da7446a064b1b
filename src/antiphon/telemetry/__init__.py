"""Log records and metrics of the server. They never contain a prompt, an answer or a credential."""
