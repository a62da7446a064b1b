"""The sandbox's job that downloads an adapter from the hub: PEFT's two files or one GGUF file, all of the
same commit. Only the sandbox imports this module."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from antiphon.errors import EngineError, HubUnavailable, InvalidValue, ModelFetchError, SettingsError
from antiphon.weights.adapters.adapter_store import build_storage_error
from antiphon.weights.adapters.import_job import PEFT_FILES
from antiphon.weights.hub.cache import HubCache
from antiphon.weights.hub.download import DISK, UNAVAILABLE, FetchProgress, Hub, HubCaller
from antiphon.weights.hub.reference import ENDING, PREFIX, Reference, parse

FIELDS = {"revision": "hf_revision", "token": "hf_token"}
"""The request field for each `param` of a hub error. For any other `param` it is `model_name`."""

MAX_LISTED = 8
"""The most file names in an error."""

LARGEST_CONFIG = 1 << 20
"""The most bytes of a configuration in which the name of the base model is looked up."""


UNREACHED = "the hub does not respond, fails, or received too many requests"
"""The cause for the log, without the caller's repository."""


def fetch_job(payload: Mapping[str, object]) -> dict[str, object]:
    """Downloads the adapter into the folder `arrived` of the payload's directory `into`. Raises InvalidValue
    about the caller's field, HubUnavailable, and EngineError if the directory cannot be written."""
    repository, revision = str(payload["repository"]), str(payload["revision"])
    token, max_bytes, pauses = payload["token"], payload["most"], payload["pauses"]
    if not isinstance(max_bytes, int) or not isinstance(pauses, list):
        raise TypeError("the job needs a size and pauses")
    staging = Path(str(payload["into"]))
    endpoint = None if payload["endpoint"] is None else str(payload["endpoint"])
    caller = HubCaller(None if token is None else str(token), max_bytes)
    hub = Hub(HubCache(staging / "fetched"), endpoint=endpoint, pauses=pauses, caller=caller)
    try:
        files = choose_files(repository, hub.list_files(repository, revision), str(payload["file"]))
        return _pull_files(
            hub, [Reference(repository, file, revision) for file in files], staging / "arrived"
        )
    except ModelFetchError as error:
        if error.param == DISK:
            reason = error.message.rpartition(": ")[2]
            raise EngineError(error.message, cause=f"an adapter cannot be stored: {reason}") from None
        if error.param == UNAVAILABLE:
            raise HubUnavailable(error.message, cause=UNREACHED) from None
        raise InvalidValue(error.message, param=FIELDS.get(error.param or "", "model_name")) from None
    except OSError as problem:
        raise build_storage_error(problem) from None


def choose_files(repository: str, names: Sequence[str], file: str) -> tuple[str, ...]:
    """Returns the names of the adapter's files in a repository. Raises InvalidValue if there is no adapter,
    or more than one."""
    adapters = [name for name in names if name.lower().endswith(ENDING) and _is_valid_name(repository, name)]
    listing = ", ".join(adapters[:MAX_LISTED])
    if file:
        if file not in adapters:
            raise _build_name_error(
                f"there is no {file} in {repository}; GGUF files of it: {listing or 'none'}"
            )
        return (file,)
    if set(PEFT_FILES) <= set(names):
        return PEFT_FILES
    if len(adapters) > 1:
        raise _build_name_error(
            f"{repository} has several GGUF files ({listing}); name one as {repository}:FILE.gguf"
        )
    if adapters:
        return (adapters[0],)
    if "adapter_model.bin" in names:
        raise _build_name_error(
            f"{repository} has adapter_model.bin, which is never read because it can contain code; "
            "save the adapter as adapter_model.safetensors"
        )
    raise _build_name_error(
        f"{repository} has no adapter: neither {' and '.join(PEFT_FILES)} nor a GGUF file"
    )


def _build_name_error(message: str) -> InvalidValue:
    """Returns the error for a wrong `model_name`."""
    return InvalidValue(message, param="model_name")


def _is_valid_name(repository: str, name: str) -> bool:
    """Whether the hub can have a GGUF file of this name in the repository."""
    try:
        parse(f"{PREFIX}{repository}:{name}")
    except SettingsError:
        return False
    return True


def _pull_files(hub: Hub, references: Sequence[Reference], directory: Path) -> dict[str, object]:
    """Downloads all files at the commit of the first file, into the directory that the import job reads."""
    first_file = hub.pull(references[0], _ignore_progress)
    name = references[0].repository.partition("/")[2]
    target = directory / name if len(references) > 1 else directory
    target.mkdir(parents=True)
    os.replace(first_file.path, target / first_file.path.name)
    for reference in references[1:]:
        file = hub.pull(Reference(reference.repository, reference.file, first_file.commit), _ignore_progress)
        os.replace(file.path, target / file.path.name)
    is_peft = len(references) > 1
    return {
        "path": name if is_peft else first_file.path.name,
        "commit": first_file.commit,
        "base": _read_base(target / PEFT_FILES[0]) if is_peft else None,
    }


def _read_base(config: Path) -> str | None:
    """Returns the base model's name in the configuration; None if there is none. The converter checks the
    other keys."""
    if config.stat().st_size > LARGEST_CONFIG:
        return None
    try:
        parsed = json.loads(config.read_bytes())
    except (ValueError, RecursionError):
        return None
    base = parsed.get("base_model_name_or_path") if isinstance(parsed, dict) else None
    return base if isinstance(base, str) else None


def _ignore_progress(_: FetchProgress) -> None:
    """Ignores progress, because the job has no terminal."""
