"""Serves the console's files. They contain no data, and do what the caller's key may do through the API.

All files are read at the first request and stay in memory (350 kB), so that no path of a request ever reaches
the disk.
"""

import gzip
import hashlib
import json
from collections.abc import Mapping
from functools import cache, partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from urllib.parse import urlsplit

from antiphon.dialects.base import Endpoint, Handler
from antiphon.dialects.http_types import JSON, Headers, Request, Response
from antiphon.dialects.services import Services
from antiphon.domain.values import Struct
from antiphon.errors import RouteNotFound
from antiphon.settings.tenancy import OidcSettings

PATH = "/console"

SIGN_IN = f"{PATH}/sign-in.json"
"""The path of what the page needs to sign in."""

MEDIA_TYPES = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "svg": "image/svg+xml",
    "txt": "text/plain",
}

FOLDERS = ("app", "vendor")

PAGE = "index.html"

LEADS = {PATH: b"console/", "/docs": b"console/#/reference"}
"""Other paths, and where they lead. Relative, because a proxy may serve all of this below a prefix."""


class File(Struct, frozen=True):
    """One file of the console."""

    body: bytes
    compressed: bytes
    """The body by gzip."""
    media_type: str
    etag: bytes


@cache
def load_files() -> Mapping[str, File]:
    """Reads all files. Their names are paths below the console's."""
    root = files("antiphon.console")
    found = {entry.name: entry for entry in root.iterdir() if entry.is_file()}
    for folder in FOLDERS:
        found |= list_files(root / folder, folder)
    loaded = {}
    for name, entry in found.items():
        media_type = MEDIA_TYPES.get(name.rpartition(".")[2])
        if media_type is not None:
            body = entry.read_bytes()
            digest = hashlib.sha256(body).hexdigest()[:32]
            loaded[name] = File(body, gzip.compress(body, mtime=0), media_type, f'"{digest}"'.encode())
    return loaded


def list_files(folder: Traversable, path: str) -> dict[str, Traversable]:
    """Lists the files of a folder and of the folders in it. `path`: the folder's own."""
    found: dict[str, Traversable] = {}
    for entry in folder.iterdir():
        name = f"{path}/{entry.name}"
        found |= list_files(entry, name) if entry.is_dir() else {name: entry}
    return found


def declare_console(oidc: OidcSettings) -> tuple[Endpoint, ...]:
    """Declares the public endpoints of the console. Its page asks for a key where the server needs one, or
    signs the user in at the issuer."""
    headers = build_headers(oidc)
    leads = [declare(path, partial(lead, headers, location)) for path, location in LEADS.items()]
    return (
        *leads,
        declare(f"{PATH}/", partial(show, headers)),
        # Below the console's prefix any word would be a file, so no wrong path is led there.
        declare(SIGN_IN, partial(tell_sign_in, headers, build_sign_in(oidc)), is_suggested=False),
        declare(f"{PATH}/{{name:path}}", partial(show, headers)),
    )


def declare(path: str, handler: Handler, is_suggested: bool = True) -> Endpoint:
    """Declares one public endpoint."""
    return Endpoint(
        method="GET",
        path=path,
        handler=handler,
        right=None,
        ends_with_caller=False,
        is_suggested=is_suggested,
    )


def build_headers(oidc: OidcSettings) -> Headers:
    """Builds the headers of all files. Scripts and styles come only from the server. Requests go only to the
    server, and to the issuer where the console signs in. Markup is made only by Lit and by DOMPurify."""
    issuer = ""
    if oidc.issuer and oidc.console_client_id:
        address = urlsplit(oidc.issuer)
        port = "" if address.port is None else f":{address.port}"
        issuer = f" {address.scheme}://{(address.hostname or '').encode('idna').decode()}{port}"
    policy = (
        f"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'{issuer}; "
        "img-src 'self' data: blob:; media-src data: blob:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types lit-html dompurify"
    )
    return (
        (b"content-security-policy", policy.encode()),
        (b"referrer-policy", b"no-referrer"),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"cache-control", b"no-cache"),  # a browser asks each time, and is told that nothing changed
        (b"vary", b"accept-encoding"),
    )


def build_sign_in(oidc: OidcSettings) -> bytes:
    """Builds what the page needs for signing in; null if it cannot. All of it is in the address of the
    issuer's own page, so it is no secret."""
    if not oidc.issuer or not oidc.console_client_id:
        return b"null"
    client = {
        "issuer": oidc.issuer,
        "client_id": oidc.console_client_id,
        "scope": " ".join(oidc.console_scopes),
    }
    return json.dumps(client).encode()


async def lead(headers: Headers, location: bytes, _request: Request, _services: Services) -> Response:
    """Leads to another address."""
    return Response(status=307, headers=(*headers, (b"location", location)), media_type=MEDIA_TYPES["html"])


async def tell_sign_in(headers: Headers, sign_in: bytes, _request: Request, _services: Services) -> Response:
    """Answers with the issuer at which the page signs in."""
    return Response(sign_in, headers=headers, media_type=JSON)


async def show(file_headers: Headers, request: Request, _services: Services) -> Response:
    """Answers with a file, or says that the browser's copy is still true."""
    name = request.path_params.get("name") or PAGE
    file = load_files().get(name)
    if file is None:
        raise RouteNotFound(f"the console has no such file; it begins at {PATH}/")
    headers = (*file_headers, (b"etag", file.etag))
    if file.etag in b",".join(request.headers.get(b"if-none-match", [])):
        return Response(status=304, headers=headers, media_type=file.media_type)
    if b"gzip" in b",".join(request.headers.get(b"accept-encoding", [])):
        compressed = (*headers, (b"content-encoding", b"gzip"))
        return Response(file.compressed, headers=compressed, media_type=file.media_type)
    return Response(file.body, headers=headers, media_type=file.media_type)
