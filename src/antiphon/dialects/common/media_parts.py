"""Reads images and recordings in messages. It checks their form and never opens an address."""

import re
from base64 import b64decode
from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

from antiphon.bodies.strict_json import sanitize_key
from antiphon.dialects.common.request_types import ImageUrlShape, InputAudioShape
from antiphon.domain.messages import MediaContent, MediaKind
from antiphon.errors import InvalidValue, UnsupportedParameter

IMAGE_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "image/png": "image/png",
        "image/jpeg": "image/jpeg",
        "image/jpg": "image/jpeg",
        "image/gif": "image/gif",
        "image/webp": "image/webp",
    }
)
"""The media types of images that vendors accept, with a common wrong name."""

AUDIO_TYPES: Mapping[str, str] = MappingProxyType({"wav": "audio/wav", "mp3": "audio/mpeg"})
"""The media type of each format of a recording."""

TEXT_TYPES = ("text/", "application/json", "application/xml", "application/yaml", "application/toml")
"""How the media types of texts begin."""

FILE_HEADER = re.compile(r"data:([a-z0-9.+-]+/[a-z0-9.+-]+)(?:;charset=[a-z0-9-]+)?;base64")

PDF_START = "JVBERi0"
"""How a PDF begins in base64."""

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,31}):")
DATA_HEADER = re.compile(r"data:([a-z0-9.+-]+/[a-z0-9.+-]+);base64")

LONGEST_HEADER = 128
"""The most characters of a data: URL before its comma."""

LONGEST_ADDRESS = 8192
"""The most characters of an https: address. Servers refuse longer addresses."""

ADDRESS = re.compile(r"[!-~]+")
"""An address has only printable ASCII without spaces, so that all vendors parse it alike."""

ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

CHECKED_AT_ONCE = 1 << 18
"""Characters of base64 that are checked in one step. Other threads can run between two steps."""


def read_image(image: ImageUrlShape, field: str, url_field: str | None = "url") -> MediaContent:
    """Reads an image. `field`: the path of the image in the request. `url_field`: the name of the field in it
    that contains the URL; None if the image is the URL itself. Raises a RequestError."""
    scheme = SCHEME.match(image.url)
    address_field = field if url_field is None else f"{field}.{url_field}"
    if scheme is None:
        raise InvalidValue(
            f"{address_field} must be a data: URL with base64, or an https: address", param=address_field
        )
    scheme_name = scheme[1].lower()
    if scheme_name == "data":
        media_type, data = _split_data_url(image.url, address_field)
        return MediaContent(MediaKind.IMAGE, media_type, data, detail=image.detail, field=field)
    if scheme_name != "https":
        raise UnsupportedParameter(
            f"{address_field} with the scheme {sanitize_key(scheme_name)} is not supported; send a data: URL "
            "with base64, or an https: address",
            param=field,
        )
    _require_address(image.url, address_field)
    return MediaContent(MediaKind.IMAGE, url=image.url, detail=image.detail, field=field)


def read_image_data(data: str, media_type: str, detail: str | None, field: str) -> MediaContent:
    """Reads an image in base64. `field`: the caller's name of the image. Raises InvalidValue."""
    known_type = IMAGE_TYPES.get(media_type.lower())
    if known_type is None:
        raise InvalidValue(
            f"{field}.media_type must be image/png, image/jpeg, image/gif or image/webp; got "
            f"{sanitize_key(media_type)}",
            param=f"{field}.media_type",
        )
    _require_base64(data, f"{field}.data")
    return MediaContent(MediaKind.IMAGE, known_type, data, detail=detail, field=field)


def read_document_data(data: str, media_type: str, field: str) -> MediaContent:
    """Reads a document in base64. `field`: the caller's name of the document. Raises InvalidValue."""
    if media_type.lower() != "application/pdf":
        raise InvalidValue(
            f"{field}.media_type must be application/pdf; got {sanitize_key(media_type)}",
            param=f"{field}.media_type",
        )
    _require_base64(data, f"{field}.data")
    return MediaContent(MediaKind.DOCUMENT, "application/pdf", data, field=field)


def read_file(data: str, field: str) -> MediaContent | str:
    """Reads a file that is a data: URL or base64. Returns a document, or the text of a text file. `field`:
    the caller's name of the data. Raises InvalidValue for another kind of file."""
    media_type = "application/pdf" if data.startswith(PDF_START) else "text/plain"
    if data[:5].lower() == "data:":
        comma = data.find(",", 0, LONGEST_HEADER)
        header = FILE_HEADER.fullmatch(data[: max(comma, 0)].lower())
        if header is None:
            raise InvalidValue(f"{field} must have the form data:TYPE;base64,DATA", param=field)
        media_type, data = header[1], data[comma + 1 :]
    _require_base64(data, field)
    if media_type == "application/pdf":
        return MediaContent(MediaKind.DOCUMENT, media_type, data, field=field)
    if not media_type.startswith(TEXT_TYPES):
        raise InvalidValue(f"{field} must be a PDF or a text; got {sanitize_key(media_type)}", param=field)
    try:
        return b64decode(data).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidValue(f"{field} must be a PDF or a text in UTF-8", param=field) from None


def read_audio(audio: InputAudioShape, field: str) -> MediaContent:
    """Reads a recording. `field`: the caller's name of the recording. Raises InvalidValue."""
    _require_base64(audio.data, f"{field}.data")
    return MediaContent(MediaKind.AUDIO, AUDIO_TYPES[audio.format], audio.data, field=field)


def _split_data_url(url: str, address_field: str) -> tuple[str, str]:
    """Returns the media type and the base64 of a data: URL. Raises InvalidValue."""
    comma = url.find(",", 0, LONGEST_HEADER)
    header = DATA_HEADER.fullmatch(url[: max(comma, 0)].lower())
    if header is None:
        raise InvalidValue(
            f"{address_field} must have the form data:image/TYPE;base64,DATA", param=address_field
        )
    media_type = IMAGE_TYPES.get(header[1])
    if media_type is None:
        raise InvalidValue(
            f"{address_field} must be an image of the type png, jpeg, gif or webp; got "
            f"{sanitize_key(header[1])}",
            param=address_field,
        )
    data = url[comma + 1 :]
    _require_base64(data, address_field)
    return media_type, data


def _require_base64(data: str, address_field: str) -> None:
    """Raises InvalidValue unless the text is base64 with padding. Decodes nothing."""
    if not _is_base64(data):
        raise InvalidValue(
            f"{address_field} must contain base64: letters, digits, + and /, with = at its end so that the "
            "length is a multiple of four",
            param=address_field,
        )


def _is_base64(data: str) -> bool:
    """Whether the text is base64 with padding, and not empty."""
    if not data or len(data) % 4 or not data.isascii():
        return False
    padding_start = len(data) - (2 if data.endswith("==") else data.endswith("="))
    return not any(
        data[start : min(start + CHECKED_AT_ONCE, padding_start)].encode("ascii").translate(None, ALPHABET)
        for start in range(0, padding_start, CHECKED_AT_ONCE)
    )


def _require_address(url: str, address_field: str) -> None:
    """Raises InvalidValue unless the text is a complete https: address."""
    try:
        is_complete = bool(urlsplit(url).hostname) and ADDRESS.fullmatch(url) is not None
    except ValueError:
        is_complete = False
    if not is_complete or len(url) > LONGEST_ADDRESS:
        raise InvalidValue(
            f"{address_field} must be a whole https: address of at most {LONGEST_ADDRESS} ASCII characters "
            "without spaces",
            param=address_field,
        )
