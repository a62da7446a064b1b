"""vLLM as a token engine, in an engine host under the interpreter of an environment of its own.

  engine host                                  vLLM's engine core, a process of its own
  VllmTokenEngine ── AsyncLLM ── ZeroMQ ──     model, KV cache, AntiphonSampler
        │                                          │
        └──────────── failures, a datagram socket ─┘

`folder` reads a folder of weights. It does not import vLLM, and the command line uses it before it
starts a process. `plugin` and `rows` run inside vLLM.
"""
