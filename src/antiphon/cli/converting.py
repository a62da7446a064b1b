"""`antiphon models convert`: one file out of a directory of saved weights, whole or not at all."""

import os
import tempfile
from pathlib import Path

from antiphon.errors import ModelFileError
from antiphon.weights.convert.bert import convert_bert


def converted(source: Path, out: Path, kind: str) -> Path:
    """The path of the GGUF file that was written. Raises ModelFileError."""
    if not (source / "config.json").is_file():
        raise ModelFileError(f"{source} holds no config.json; name a directory as transformers saves it")
    if out.exists():
        raise ModelFileError(f"{out} is there already; remove it, or name another file")
    try:
        handle, name = tempfile.mkstemp(dir=out.parent, prefix=".convert-", suffix=".gguf")
    except OSError as problem:
        raise ModelFileError(f"cannot write to {out.parent}: {os.strerror(problem.errno or 0)}") from None
    os.close(handle)
    partial = Path(name)
    try:
        convert_bert(source, partial, kind)
        partial.chmod(0o644)
        partial.replace(out)
    except OSError as problem:
        raise ModelFileError(f"cannot write {out}: {os.strerror(problem.errno or 0)}") from None
    finally:
        partial.unlink(missing_ok=True)
    return out.absolute()
