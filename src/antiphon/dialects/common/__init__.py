"""What several products share: field tables, strict JSON, the chat wire, answers, the stream encoder, and the
endpoints whose handlers take a product's codec."""
