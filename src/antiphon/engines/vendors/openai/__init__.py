"""The upstream dialect of OpenAI's API: chats, completions and embeddings. Many servers speak it."""
