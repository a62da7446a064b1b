"""Images and recordings of callers: how they become pixels and samples.

A caller's file is hostile until the opposite is proved. `decoder` sends it to a process of its own
(`decoding_process`), where `images` and `sound` decode it. Only raw pixels and samples come back, and only
they reach an engine. `reader` reads the parts of a request.
"""
