"""Converts a configuration of LiteLLM's proxy to settings of Antiphon (`antiphon import litellm`)."""
