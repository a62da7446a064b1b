"""Where models come from: files, their headers, the hub, adapters, and what fits the memory."""
