"""An OpenID Connect issuer for tests: its keys, tokens and documents, and signing in by code with PKCE."""

import hashlib
import json
import secrets
import threading
import time
from base64 import urlsafe_b64encode
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from antiphon.auth.signing_keys import DISCOVERY
from antiphon.errors import IssuerUnavailable

ADDRESS = "https://issuer.example"
AUDIENCE = "antiphon"
KEYS = ADDRESS + "/keys"
CONSOLE = "antiphon-console"
"""The public client that users sign in with."""


class SigningKey:
    """A key pair of the issuer and its algorithm."""

    def __init__(self, kid, algorithm="ES256"):
        self.kid, self.algorithm = kid, algorithm
        self.private, public = _elliptic() if algorithm == "ES256" else _rsa()
        self.public = json.loads(public) | {"kid": kid, "use": "sig", "alg": algorithm}


def _elliptic():
    private = ec.generate_private_key(ec.SECP256R1())
    return private, jwt.algorithms.ECAlgorithm.to_jwk(private.public_key())


def _rsa():
    private = rsa.generate_private_key(65537, 2048)
    return private, jwt.algorithms.RSAAlgorithm.to_jwk(private.public_key())


class Issuer:
    """Serves its discovery document and keys; `fetched_urls` records the requests. Signs in everybody who
    comes to its page, as the user of `claims`."""

    def __init__(self, *keys, address=ADDRESS):
        self.address = address
        self.keys = list(keys) or [SigningKey("one")]
        self.fetched_urls = []
        self.is_down = False
        self.redirects = set()
        """Where users may be led back to."""
        self.claims = {}
        self.refusal = None
        """An error with which users are led back, in place of a code."""
        self._codes = {}

    def documents(self):
        keys = self.address + "/keys"
        return {
            self.address + DISCOVERY: {
                "issuer": self.address,
                "jwks_uri": keys,
                "authorization_endpoint": self.address + "/authorize?tenant=one",
                "token_endpoint": self.address + "/token",
            },
            keys: {"keys": [key.public for key in self.keys]},
        }

    def authorize(self, query):
        """Returns the address to which a user is led back."""
        asked = dict(parse_qsl(query))
        assert asked["tenant"] == "one" and asked["response_type"] == "code"
        assert asked["client_id"] == CONSOLE and asked["redirect_uri"] in self.redirects
        assert asked["code_challenge_method"] == "S256" and "openid" in asked["scope"].split()
        reply = {"state": asked["state"], "iss": self.address}
        if self.refusal:
            reply |= self.refusal
        else:
            reply["code"] = secrets.token_urlsafe(8)
            self._codes[reply["code"]] = asked
        return f"{asked['redirect_uri']}?{urlencode(reply)}"

    def redeem(self, body):
        """Exchanges a code, once, for tokens. Returns status and answer."""
        sent = dict(parse_qsl(body))
        asked = self._codes.pop(sent.get("code"), None)
        digest = hashlib.sha256(sent.get("code_verifier", "").encode()).digest()
        if (
            asked is None
            or sent["grant_type"] != "authorization_code"
            or urlsafe_b64encode(digest).rstrip(b"=").decode() != asked["code_challenge"]
            or any(sent[name] != asked[name] for name in ("client_id", "redirect_uri"))
        ):
            return 400, {"error": "invalid_grant", "error_description": "the code is not valid"}
        now = time.time()
        access = self.token(now, **self.claims)
        proof = self.token(now, **self.claims | {"aud": CONSOLE, "nonce": asked["nonce"]})
        return 200, {
            "access_token": access,
            "id_token": proof,
            "token_type": "Bearer",
            "expires_in": max(int(self.claims.get("exp", now + 3600) - now), 1),
        }

    async def fetch(self, url):
        self.fetched_urls.append(url)
        if self.is_down:
            raise IssuerUnavailable("away")
        return json.dumps(self.documents()[url]).encode()

    def token(self, now, key=None, headers=None, **changes):
        """Issues a token for ann that is valid for an hour; a claim of None is omitted."""
        claims = {
            "iss": self.address,
            "aud": AUDIENCE,
            "sub": "1234",
            "email": "ann@example.org",
            "name": "Ann",
            "iat": int(now),
            "exp": int(now) + 3600,
        } | changes
        payload = {name: value for name, value in claims.items() if value is not None}
        key = key or self.keys[0]
        return jwt.encode(payload, key.private, key.algorithm, {"kid": key.kid} | (headers or {}))


@contextmanager
def listening(issuer):
    """Answers for the issuer on a free port of this machine."""

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self):
            url = urlsplit(self.path)
            issuer.fetched_urls.append(url.path)
            if url.path == "/authorize":
                self.send_response(302)
                self.send_header("location", issuer.authorize(url.query))
                self.end_headers()
                return
            found = issuer.documents().get(issuer.address + self.path)
            self.answer(404 if found is None else 200, found)

        def do_POST(self):
            issuer.fetched_urls.append(self.path)
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            self.answer(*issuer.redeem(body))

        def answer(self, status, found):
            self.send_response(status)
            self.send_header("access-control-allow-origin", "*")
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *said):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    issuer.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
