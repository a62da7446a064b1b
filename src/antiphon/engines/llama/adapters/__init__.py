"""LoRA adapters in the embedded engine: `loader` checks files on the event loop, `cache` is the decode
thread's."""
