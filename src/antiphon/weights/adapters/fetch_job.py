"""The sandbox's job that fetches an adapter from the hub: PEFT's two files, or one GGUF file, all of one
commit. Only the helper imports it."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from antiphon.errors import EngineError, HubUnavailable, InvalidValue, ModelFetchError, SettingsError
from antiphon.weights.adapters.import_job import PEFT_FILES
from antiphon.weights.adapters.registry import storage_error
from antiphon.weights.hub.cache import HubCache
from antiphon.weights.hub.download import AWAY, DISK, FetchProgress, Hub, HubCaller
from antiphon.weights.hub.reference import ENDING, PREFIX, Reference, parse

FIELDS = {"revision": "hf_revision", "token": "hf_token"}
"""The callers' names of the parts of a deployment; every other part is `model_name`."""

MOST_SHOWN = 8
LARGEST_CONFIG = 1 << 20
"""Bytes of a configuration that is read for the name of its model."""


UNREACHED = "the hub does not answer, fails, or was asked too often"
"""The log's sentence, without the caller's repository."""


def fetch_job(payload: Mapping[str, object]) -> dict[str, object]:
    """Fetches into `into`/arrived. Raises InvalidValue, which names the caller's field, HubUnavailable, and
    EngineError when `into` cannot be written."""
    repository, revision = str(payload["repository"]), str(payload["revision"])
    token, max_bytes, pauses = payload["token"], payload["most"], payload["pauses"]
    if not isinstance(max_bytes, int) or not isinstance(pauses, list):
        raise TypeError("the job needs a size and pauses")
    into = Path(str(payload["into"]))
    endpoint = None if payload["endpoint"] is None else str(payload["endpoint"])
    caller = HubCaller(None if token is None else str(token), max_bytes)
    hub = Hub(HubCache(into / "fetched"), endpoint=endpoint, pauses=pauses, caller=caller)
    try:
        files = choose_files(repository, hub.list_files(repository, revision), str(payload["file"]))
        return _pull_files(hub, [Reference(repository, file, revision) for file in files], into / "arrived")
    except ModelFetchError as refused:
        if refused.param == DISK:
            reason = refused.message.rpartition(": ")[2]
            raise EngineError(refused.message, cause=f"an adapter cannot be kept: {reason}") from None
        if refused.param == AWAY:
            raise HubUnavailable(refused.message, cause=UNREACHED) from None
        raise InvalidValue(refused.message, param=FIELDS.get(refused.param or "", "model_name")) from None
    except OSError as problem:
        raise storage_error(problem) from None


def choose_files(repository: str, names: Sequence[str], file: str) -> tuple[str, ...]:
    """Returns the names of the adapter's files in a repository. Raises InvalidValue if there is no adapter,
    or more than one."""
    adapters = [name for name in names if name.lower().endswith(ENDING) and _is_file(repository, name)]
    listing = ", ".join(adapters[:MOST_SHOWN])
    if file:
        if file not in adapters:
            raise _to_refusal(f"there is no {file} in {repository}; GGUF files of it: {listing or 'none'}")
        return (file,)
    if set(PEFT_FILES) <= set(names):
        return PEFT_FILES
    if len(adapters) > 1:
        raise _to_refusal(
            f"{repository} holds several GGUF files ({listing}); name one as {repository}:FILE.gguf"
        )
    if adapters:
        return (adapters[0],)
    if "adapter_model.bin" in names:
        raise _to_refusal(
            f"{repository} holds adapter_model.bin, which is never read since it may hold code; save the "
            "adapter as adapter_model.safetensors"
        )
    raise _to_refusal(f"{repository} holds no adapter: neither {' and '.join(PEFT_FILES)} nor a GGUF file")


def _to_refusal(message: str) -> InvalidValue:
    """Makes the error for a wrong `model_name`."""
    return InvalidValue(message, param="model_name")


def _is_file(repository: str, name: str) -> bool:
    """Whether the name is a valid name of a GGUF file in the repository."""
    try:
        parse(f"{PREFIX}{repository}:{name}")
    except SettingsError:
        return False
    return True


def _pull_files(hub: Hub, references: Sequence[Reference], into: Path) -> dict[str, object]:
    """Fetches every file at the commit of the first file, into the directory in which the registry's job
    looks for them."""
    first = references[0]
    fetched = hub.pull(first, _ignore_progress)
    name = first.repository.partition("/")[2]
    target = into / name if len(references) > 1 else into
    target.mkdir(parents=True)
    os.replace(fetched.path, target / fetched.path.name)
    for reference in references[1:]:
        other = hub.pull(Reference(reference.repository, reference.file, fetched.commit), _ignore_progress)
        os.replace(other.path, target / other.path.name)
    is_peft = len(references) > 1
    return {
        "path": name if is_peft else fetched.path.name,
        "commit": fetched.commit,
        "base": _read_base(target / PEFT_FILES[0]) if is_peft else None,
    }


def _read_base(config: Path) -> str | None:
    """Returns the base model's name in the configuration; None if there is none. The converter checks the
    rest of the configuration."""
    if config.stat().st_size > LARGEST_CONFIG:
        return None
    try:
        parsed = json.loads(config.read_bytes())
    except (ValueError, RecursionError):
        return None
    base = parsed.get("base_model_name_or_path") if isinstance(parsed, dict) else None
    return base if isinstance(base, str) else None


def _ignore_progress(_: FetchProgress) -> None:
    """Shows no progress: nobody watches."""
