"""LoRA adapters: the registry, the sandbox's jobs that import and download them, and the hub as a source."""
