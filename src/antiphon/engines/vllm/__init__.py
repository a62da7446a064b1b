"""vLLM as a token engine, in an engine host under the interpreter of an environment of its own.

  engine host                                  vLLM's engine core, a process of its own
  VllmTokenEngine ── AsyncLLM ── ZeroMQ ──     model, KV cache, AntiphonSampler
        │                                          │
        └──────────── failures, a datagram socket ─┘

`folder` reads what a folder of weights says, and `environment` examines an interpreter; neither imports vLLM,
and the command line uses both before a process is started. `sampler` runs inside vLLM.
"""
