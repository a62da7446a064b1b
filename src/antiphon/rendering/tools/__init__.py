"""Tool calls as models write them: the notation of each family of models (`call_notation`), and the readers
that find calls in generated text."""
