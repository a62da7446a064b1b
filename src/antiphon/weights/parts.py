"""Models that were split over several files: which part a file is, and where the others lie. The
library finds them by the same names. Opens nothing.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from antiphon.errors import ModelFileError

NAME = re.compile(r"^(.+)-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)

MOST_PARTS = 1000


def without_part(name: str) -> str:
    """A file's name without its ending, and without its number if it is a part."""
    match = NAME.match(name)
    return match[1] if match else Path(name).stem


def place_of(metadata: Mapping[str, object]) -> tuple[int, int]:
    """Which part a file is, from 0, and of how many."""
    number, count = metadata.get("split.no", 0), metadata.get("split.count", 1)
    if not isinstance(number, int) or not isinstance(count, int):
        return 0, 1
    return number, max(1, count)


def other_parts(path: Path, metadata: Mapping[str, object]) -> Iterator[Path]:
    """The files that belong to a first part, in order; none of a whole model. Raises ModelFileError for
    another part, and where one cannot be found."""
    number, count = place_of(metadata)
    if count == 1:
        return
    which = f"{path.name} is part {number + 1} of {count} of a split model"
    match = NAME.match(path.name)
    if count > MOST_PARTS or match is None or (int(match[2]), int(match[3])) != (number + 1, count):
        raise ModelFileError(f"{which}, and its name does not say so; give all parts the names that they had")
    if number:
        raise ModelFileError(f"{which}; name the first, {match[1]}-00001-of-{count:05}.gguf")
    for each in range(2, count + 1):
        part = path.with_name(f"{match[1]}-{each:05}-of-{count:05}.gguf")
        if not part.exists():
            raise ModelFileError(
                f"{which}, and {part.name} is not beside it; fetch all parts into one directory"
            )
        yield part
