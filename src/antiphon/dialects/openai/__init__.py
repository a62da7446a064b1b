"""OpenAI's wire format for chat and text completions, with vLLM's endpoints for token ids."""
