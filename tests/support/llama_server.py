"""llama-server in a process of its own: the `Server` of xllamacpp, whose library the engine uses."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf

from tests.support.model_files import CANTOR

SCRIPT = """
import sys
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, template, params.mmproj.path = sys.argv[1:]
params.image_max_tokens = 1024 if params.mmproj.path else -1
if template:
    params.chat_template = template
params.n_ctx, params.n_parallel = 4096, 2
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.fit_params = params.warmup = False
params.cache_ram_mib = 0
server = xllamacpp.Server(params)
print("listening", server.listening_address, flush=True)
sys.stdin.read()
"""


def read_template() -> str:
    """The model's chat template, with other words for its control tokens: with them this build can compile no
    grammar."""
    template: str = gguf.GGUFReader(CANTOR).fields["tokenizer.chat_template"].contents()
    return template.replace("<|im_start|>", "").replace("<|im_end|>", "").replace("bos_token", "''")


@contextmanager
def serve_llama_server(
    model: Path = CANTOR, template: str | None = None, projector: Path | None = None
) -> Iterator[str]:
    """Yields the server's address without a path. `template`: the chat template, by default the demo model's;
    empty for the file's own. `projector`: the file with which the model takes images, at most 1024 tokens
    each."""
    child = subprocess.Popen(
        [
            *(sys.executable, "-c", SCRIPT, str(model)),
            read_template() if template is None else template,
            "" if projector is None else str(projector),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdout is not None
    try:
        line = next((line for line in child.stdout if line.startswith("listening ")), None)
        assert line, f"llama-server ended with {child.wait(10)}"
        yield line.split()[1]
    finally:
        child.terminate()
        child.communicate(timeout=60)
