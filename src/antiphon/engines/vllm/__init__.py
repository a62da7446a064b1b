"""vLLM as a token engine, in an engine host under the interpreter of an environment of its own.

  engine host                                  vLLM's engine core, a process of its own
  VllmTokenEngine ── AsyncLLM ── ZeroMQ ──     model, KV cache, AntiphonSampler
        │                                          │
        └──────────── failures, a datagram socket ─┘

`folder` reads the files of a folder of weights, and `environment` examines an interpreter. Neither imports
vLLM, and the command line uses both before it starts a process. `plugin` and `rows` run inside vLLM.
"""
