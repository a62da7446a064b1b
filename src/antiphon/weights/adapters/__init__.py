"""LoRA adapters: the registry that keeps them, the sandbox's jobs that import and fetch them, and the hub as
a source."""
