"""LoRA adapters in the embedded engine: `loader` checks files on the event loop; the decode thread owns the
`cache`."""
