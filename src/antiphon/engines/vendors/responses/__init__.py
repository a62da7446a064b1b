"""Chats by OpenAI's Responses API."""
