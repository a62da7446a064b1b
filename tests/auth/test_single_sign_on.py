"""Whose tokens are accepted, what makes one none, and what groups make of their users."""

import base64
import json
import re
import time
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives import serialization

from antiphon.auth import single_sign_on
from antiphon.auth.base import REFUSAL, RequestedScope
from antiphon.auth.keyring import Keyring
from antiphon.auth.secrets import Pepper
from antiphon.auth.signing_keys import MAX_AGE_S, MIN_FETCH_INTERVAL_S, REFRESH_S, SigningKeys
from antiphon.auth.single_sign_on import (
    ClaimReader,
    SingleSignOn,
    TokenRequirements,
    TokenVerificationCache,
    parse_group_rules,
)
from antiphon.domain.identity import EVERY_RIGHT, Actor, ActorKind, Right
from antiphon.domain.tenancy import AuditSelection, ProjectRole
from antiphon.domain.values import replace
from antiphon.errors import AuthenticationFailed, IssuerUnavailable, MissingParameter, PermissionDenied
from antiphon.services.changes import DirectoryChanges
from antiphon.services.tenancy import TenancyService
from antiphon.store.tenancy import SqlTenancy
from tests.support.oidc_issuer import ADDRESS, AUDIENCE, Issuer, SigningKey
from tests.support.stores import open_new_store

OPERATOR = Actor(ActorKind.ADMIN, "operator", rights=EVERY_RIGHT)
NOBODY = RequestedScope()
TERMS = TokenRequirements(ADDRESS, AUDIENCE, ("RS256", "ES256"), 30)


class World:
    """A store with the project default, and one issuer. Its clock stands at the time of its making, and can
    be put on."""

    def __init__(self, folder):
        self.began, self.ahead = time.time(), 0.0
        database = open_new_store(folder / "antiphon.db")
        tenancy = SqlTenancy(database)
        self.keyring = Keyring(Pepper(b"p" * 32), self.now)
        self.changes = DirectoryChanges(tenancy, [self.keyring.replace_directory], self.now)
        self.tenants = TenancyService(self.changes, tenancy, Pepper(b"p" * 32))
        self.issuer = Issuer()
        self.sign_on()

    def now(self):
        return self.began + self.ahead

    def sign_on(self, *groups, add_users=False, url=None, terms=TERMS, **reading):
        reader = ClaimReader(
            **{"user_claim": "email", "groups_claim": "groups"} | reading, rules=parse_group_rules(groups)
        )
        self.keys = SigningKeys(ADDRESS, url, self.issuer.fetch, self.now)
        proof = TokenVerificationCache(terms, self.keys, reader, self.now)
        self.verifier = SingleSignOn(
            proof,
            reader.group_projects,
            self.keyring,
            self.tenants,
            lambda: self.changes.directory,
            add_users,
        )

    def token(self, key=None, **changes):
        return self.issuer.token(self.began, key, **changes)

    async def verify(self, token, chosen=NOBODY):
        return await self.verifier.verify(token, chosen)

    async def refused(self, token):
        with pytest.raises(AuthenticationFailed) as caught:
            await self.verify(token)
        return caught.value.message == REFUSAL

    async def add(self, name="ann", role=ProjectRole.MEMBER):
        user = await self.tenants.add_user(OPERATOR, name.title(), f"{name}@example.org", "")
        if role is not None:
            await self.tenants.put_member(OPERATOR, "default", user.id, role)
        return user

    def roles(self, user):
        return {
            each.project: each.role for each in self.changes.directory.memberships if each.user == user.id
        }


@pytest.fixture
async def world(tmp_path):
    world = World(tmp_path)
    await world.changes.load()
    yield world
    world.changes.close()


async def test_a_token_speaks_for_its_user_until_it_ends(world):
    user = await world.add()
    actor = await world.verify(world.token())
    assert (actor.kind, actor.user, actor.project) == (ActorKind.USER, user.id, "default")
    assert Right.GENERATE in actor.rights
    assert not actor.admin
    assert actor.expires == int(world.began) + 3630
    world.ahead = 3600 + 31
    assert await world.refused(world.token())


async def test_a_user_chooses_among_projects_and_no_others(world):
    user = await world.add()
    other = await world.tenants.add_project(OPERATOR, "Other", "")
    with pytest.raises(PermissionDenied, match="not a member"):
        await world.verify(world.token(), RequestedScope(project=other.id))
    await world.tenants.put_member(OPERATOR, other.id, user.id, ProjectRole.VIEWER)
    with pytest.raises(MissingParameter, match="several projects"):
        await world.verify(world.token())
    actor = await world.verify(world.token(), RequestedScope(project=other.id))
    assert (actor.project, Right.GENERATE in actor.rights) == (other.id, False)
    with pytest.raises(PermissionDenied, match="another user"):
        await world.verify(world.token(), RequestedScope("default", "stranger"))


@pytest.mark.parametrize("token", ["ak_x", "eyJ", "eyJ.eyJ", "a.b.c", "eyJhbGciOi"])
async def test_what_is_no_such_token_is_left_to_others(world, token):
    assert await world.verify(token) is None
    assert world.issuer.fetched_urls == []


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://elsewhere.example"},
        {"iss": None},
        {"aud": "others"},
        {"aud": None},
        {"aud": ["others", "more"]},
        {"exp": 1},
        {"exp": None},
        {"exp": "soon"},
        {"exp": 10**400},
        {"nbf": 4102444800},
        {"iat": 4102444800},
        {"email": None},
        {"email": 7},
        {"email": ""},
        {"email": "a" * 400},
        {"email": "ann\0@example.org"},
        {"email": "\ud800@example.org"},
        {"email": "\u200b"},
        {"email": "stranger@example.org"},
        {"email_verified": False},
        {"email_verified": "False"},
        {"email_verified": "no"},
        {"email_verified": "True"},
        {"email_verified": 0},
        {"email_verified": 1},
        {"email_verified": ""},
        {"email_verified": [True]},
    ],
    ids=lambda changes: "-".join(f"{name}={value!r:.30}" for name, value in changes.items()),
)
async def test_a_token_with_other_claims_is_refused(world, changes):
    await world.add()
    assert (await world.verify(world.token())).user
    assert await world.refused(world.token(**changes))


@pytest.mark.parametrize("verified", [True, "true"])
async def test_a_verified_address_is_accepted(world, verified):
    await world.add()
    assert (await world.verify(world.token(email_verified=verified))).user


async def test_an_address_whose_verification_is_null_is_refused(world):
    await world.add()
    claims = jwt.decode(world.token(), options={"verify_signature": False}) | {"email_verified": None}
    key = world.issuer.keys[0]
    assert await world.refused(jwt.encode(claims, key.private, key.algorithm, {"kid": key.kid}))


async def test_only_ascii_letters_are_compared_without_their_case(world):
    mike = await world.add("mike")
    world.sign_on(add_users=True)
    assert (await world.verify(world.token(email="MIKE@Example.ORG"))).user == mike.id
    for address in ("mi\u212ae@example.org", "mike@example.or\u0261", "mi\u212ae@EXAMPLE.org"):
        with pytest.raises(PermissionDenied, match="not a member of any project"):
            await world.verify(world.token(email=address))
    added = {user.email for user in world.changes.directory.users} - {"mike@example.org"}
    assert added == {"mi\u212ae@example.org", "mike@example.or\u0261"}
    await world.tenants.change_user(OPERATOR, mike.id, lambda each: replace(each, email="\xc4nn@Example.org"))
    assert (await world.verify(world.token(email="\xc4NN@example.ORG"))).user == mike.id
    with pytest.raises(PermissionDenied):
        await world.verify(world.token(email="\xe4nn@example.org"))


def encoded(claims):
    return base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")


def spoilt(token, **header):
    """A token whose header says something else, under the old signature."""
    _, claims, signature = token.split(".")
    said = jwt.get_unverified_header(token) | header
    return ".".join(
        [base64.urlsafe_b64encode(json.dumps(said).encode()).decode().rstrip("="), claims, signature]
    )


async def test_a_forged_token_is_refused(world):
    await world.add()
    good = world.token()
    stranger = SigningKey("one")
    public = world.issuer.keys[0].private.public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    claims = jwt.decode(good, options={"verify_signature": False})
    head, _, signature = good.split(".")
    deep = base64.urlsafe_b64encode(b'{"a":' * 1500 + b"1" + b"}" * 1500).decode().rstrip("=")
    forged = {
        "another key under the same id": world.token(stranger),
        "no signature": jwt.encode(claims, "", "none", {"kid": "one"}),
        "signed with the public key as a secret": spoilt(_signed_with(pem, claims)),
        "algorithm none under a signature": spoilt(good, alg="none"),
        "another algorithm": spoilt(good, alg="RS256"),
        "keys from where the token says": spoilt(good, jku="https://evil.example/keys", kid="evil"),
        "a key in the token": spoilt(_signed_with(pem, claims), alg="ES256", jwk=stranger.public, kid="one"),
        "its own key in the token": jwt.encode(
            claims, stranger.private, "ES256", {"kid": "two", "jwk": stranger.public}
        ),
        "a certificate from where the token says": spoilt(good, x5u="https://evil.example/cert", kid="evil"),
        "a certificate in the token": spoilt(good, x5c=["MIIB"], kid="evil"),
        "a key id that is a path": spoilt(good, kid="../../../dev/null"),
        "a key id that is a list": spoilt(good, kid=["one"]),
        "a key id that is a number": spoilt(good, kid=1),
        "no algorithm": spoilt(good, alg=None),
        "an unknown critical header": spoilt(good, crit=["b64"], b64=False),
        "a detached body": f"{head}..{signature}",
        "another body": f"{head}.{encoded(claims | {'email': 'b@x'})}.{signature}",
        "a cut signature": good[:-4],
        "deep JSON": f"eyJ{deep}.{deep}.{signature}",
        "no text": f"{head}.\0\xff.{signature}",
    }
    for name, token in forged.items():
        assert await world.refused(token), name
    assert not any("evil" in url for url in world.issuer.fetched_urls)
    assert (await world.verify(good)).user


def _signed_with(pem, claims):
    """HS256 under the issuer's public key: what a careless reader takes for the issuer's signature."""
    import hashlib
    import hmac

    def part(said):
        return base64.urlsafe_b64encode(said).decode().rstrip("=")

    head = part(json.dumps({"alg": "HS256", "typ": "JWT", "kid": "one"}).encode())
    body = part(json.dumps(claims).encode())
    return f"{head}.{body}." + part(hmac.digest(pem, f"{head}.{body}".encode(), hashlib.sha256))


async def test_disabled_users_and_archived_projects_end_proved_tokens(world):
    user = await world.add()
    token = world.token()
    assert await world.verify(token)
    await world.tenants.change_user(OPERATOR, user.id, lambda each: each, True)
    assert await world.refused(token)
    await world.tenants.change_user(OPERATOR, user.id, lambda each: each, False)
    assert await world.verify(token)
    await world.tenants.remove_member(OPERATOR, "default", user.id)
    with pytest.raises(PermissionDenied, match="not a member of any project"):
        await world.verify(token)


async def test_rotated_keys_are_fetched_and_unknown_ones_only_rarely(world):
    await world.add()
    assert await world.verify(world.token())
    fresh = SigningKey("two", "RS256")
    world.issuer.keys.append(fresh)
    assert await world.refused(world.token(fresh))  # asked for a moment ago
    world.ahead += MIN_FETCH_INTERVAL_S + 1
    assert await world.verify(world.token(fresh))
    before = len(world.issuer.fetched_urls)
    for number in range(50):
        assert await world.refused(world.token(SigningKey(f"unknown-{number}")))
    assert len(world.issuer.fetched_urls) == before
    old = world.token()
    assert await world.verify(old)
    del world.issuer.keys[0]
    world.ahead += REFRESH_S + 1
    assert await world.refused(old)


async def test_an_issuer_that_is_away_ends_nothing_for_a_day(world):
    await world.add()
    world.issuer.is_down = True
    for _ in range(3):
        with pytest.raises(IssuerUnavailable):
            await world.verify(world.token())
    assert len(world.issuer.fetched_urls) == 1
    world.issuer.is_down = False
    world.ahead += MIN_FETCH_INTERVAL_S + 1
    assert await world.verify(world.token())
    world.issuer.is_down = True
    long = world.token(exp=int(world.began) + 10 * 86_400)
    world.ahead += MAX_AGE_S - 60
    assert await world.verify(long)
    world.ahead += 120
    with pytest.raises(IssuerUnavailable):
        await world.verify(long)


async def test_an_issuer_that_says_something_else_is_not_believed(world):
    await world.add()
    world.issuer.documents = lambda: {url: {"issuer": "https://other.example"} for url in world.issuer_urls}
    world.issuer_urls = [ADDRESS + "/.well-known/openid-configuration"]
    with pytest.raises(IssuerUnavailable):
        await world.verify(world.token())
    said = {"issuer": ADDRESS, "jwks_uri": "http://issuer.example/keys"}
    world.issuer.documents = lambda: dict.fromkeys(world.issuer_urls, said)
    world.ahead += MIN_FETCH_INTERVAL_S + 1
    with pytest.raises(IssuerUnavailable):
        await world.verify(world.token())
    assert all(url.startswith("https://") for url in world.issuer.fetched_urls)


async def test_a_key_that_is_not_for_signing_is_not_used(world):
    await world.add()
    world.issuer.keys[0].public["use"] = "enc"
    world.sign_on(url=ADDRESS + "/keys")
    assert await world.refused(world.token())
    assert world.issuer.fetched_urls == [ADDRESS + "/keys"]


async def test_a_key_without_a_usable_id_is_left_out(world):
    await world.add()
    odd = SigningKey("odd")
    odd.public["kid"] = ["x"]
    world.issuer.keys.append(odd)
    assert await world.verify(world.token())
    world.ahead += REFRESH_S + 1
    assert await world.verify(world.token(sub="again"))


async def test_users_are_added_only_where_that_is_set(world):
    assert await world.refused(world.token())
    world.sign_on("staff=default:viewer", add_users=True)
    actor = await world.verify(world.token(groups=["staff", "others"]))
    added = next(user for user in world.changes.directory.users if user.id == actor.user)
    assert (added.name, added.email) == ("Ann", "ann@example.org")
    assert Right.GENERATE not in actor.rights
    entries = await world.tenants.list_audit(OPERATOR, 10, None, AuditSelection())
    assert {entry.actor for entry in entries} == {"single-sign-on"}
    await world.verify(world.token(email="ANN@example.org", groups=["staff"]))
    assert len(world.changes.directory.users) == 1


@pytest.mark.parametrize("name", ["\u200b ", "a\0b", "\ud800", " " * 300 + "Ann", 7])
async def test_a_user_without_a_valid_name_is_named_by_the_address(world, name):
    world.sign_on("staff=default:viewer", add_users=True)
    await world.verify(world.token(groups=["staff"], name=name))
    (added,) = world.changes.directory.users
    assert (added.name, added.email) == ("ann@example.org", "ann@example.org")


async def test_a_users_new_address_signs_that_user_on(world):
    user = await world.add()
    assert (await world.verify(world.token())).user == user.id
    await world.tenants.change_user(OPERATOR, user.id, lambda each: replace(each, email="New@example.org"))
    assert await world.refused(world.token())
    assert (await world.verify(world.token(email="new@Example.org"))).user == user.id


async def test_groups_start_and_end_memberships_of_ruled_projects(world):
    user = await world.add(role=ProjectRole.OWNER)
    other = await world.tenants.add_project(OPERATOR, "Other", "")
    world.sign_on(f"ml={other.id}:member", f"leads={other.id}:owner", f"all={other.id}:viewer")
    now = int(world.began)
    both = world.token(groups=["all", "leads", "ml"], iat=now - 100)
    await world.verify(both, RequestedScope(project=other.id))
    assert world.roles(user) == {"default": ProjectRole.OWNER, other.id: ProjectRole.OWNER}
    entries = len(await world.tenants.list_audit(OPERATOR, 100, None, AuditSelection()))
    for _ in range(3):
        await world.verify(both, RequestedScope(project=other.id))
    assert len(await world.tenants.list_audit(OPERATOR, 100, None, AuditSelection())) == entries
    await world.verify(world.token(groups=[], iat=now), RequestedScope(project="default"))
    assert world.roles(user) == {"default": ProjectRole.OWNER}
    with pytest.raises(PermissionDenied):  # an older token says what was
        await world.verify(both, RequestedScope(project=other.id))
    assert world.roles(user) == {"default": ProjectRole.OWNER}


async def test_groups_may_lie_deep_and_name_what_is_not_there(world):
    user = await world.add(role=None)
    world.sign_on("ml=default:member", "ml=nowhere:owner", groups_claim="realm_access.roles")
    await world.verify(world.token(realm_access={"roles": ["ml", 7, None]}))
    assert world.roles(user) == {"default": ProjectRole.MEMBER}
    await world.verify(world.token(realm_access={"roles": "ml"}))
    for unread in ({"ml": 1}, 7, None, [["ml"]]):
        with pytest.raises(PermissionDenied, match="not a member of any project"):
            await world.verify(world.token(realm_access={"roles": unread}, sub=str(unread)))
        assert world.roles(user) == {}


async def test_a_signature_is_checked_once_for_each_token(world, monkeypatch):
    await world.add()
    token, checked = world.token(), []
    decode = jwt.decode

    def counted(*said, **named):
        checked.append(said)
        return decode(*said, **named)

    monkeypatch.setattr(jwt, "decode", counted)
    for _ in range(5):
        assert await world.verify(token)
    assert len(checked) == 1
    assert await world.verify(world.token(sub="again"))
    assert len(checked) == 2


async def test_tokens_that_were_proved_are_remembered_up_to_a_bound(world, monkeypatch):
    monkeypatch.setattr(single_sign_on, "MAX_CACHED_TOKENS", 8)
    await world.add()
    for number in range(20):
        assert await world.verify(world.token(sub=str(number)))
    assert len(world.verifier._token_cache._cache) == 8


def test_the_page_has_every_cause_of_a_refusal():
    page = (Path(__file__).parents[2] / "docs" / "single-sign-on.md").read_text("utf-8")
    causes = [cause for _, cause in single_sign_on.REFUSAL_CAUSES]
    code = Path(single_sign_on.__file__).read_text("utf-8")
    causes += re.findall(r'_refuse\(f?"([^"{]+)', code)
    assert len(causes) >= 12 and [cause for cause in causes if f"| {cause}" not in page] == []
