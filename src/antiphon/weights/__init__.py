"""Where models come from: their files, what these say of themselves, and what fits the memory."""
