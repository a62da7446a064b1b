"""Tool calls of models: the notation of each family (`call_notation`), and the readers that find calls in
generated text."""
