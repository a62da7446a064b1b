"""Scale's Generative AI Platform (SGP), version 4 beta: chat and text completions."""
