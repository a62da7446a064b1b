"""The commands over the admin API as a user runs them: what they send and print, and one line about what is
wrong. With a real server they are tested in tests/e2e/test_commands.py."""

import io
import json
import re
from pathlib import Path

import pytest

from antiphon.cli import admin_client as admin
from antiphon.cli.local_servers import publish_state
from antiphon.cli.output import CallFailed
from tests.cli.conftest import Run
from tests.cli.scripted import *  # noqa: F403 - a fixture is found by its name; `__all__` lists it
from tests.cli.scripted import Scripted, page

SECRET = "ak-canary-5d1c"
PROJ, USER = "proj_0000000000000000001", "user_0000000000000000001"
MEMBERSHIP = f"/projects/{PROJ}/members/{USER}"


def project(number: int) -> dict[str, object]:
    named = {"object": "project", "id": f"proj_{number}", "name": f"P{number}", "note": ""}
    return named | {"created_at": 0, "archived_at": None}


def test_a_list_is_read_to_its_end(antiphon: Run, server: Scripted) -> None:
    server.answers = [page(project(1), following="proj_1"), page(project(2))]
    ended = antiphon("projects", "list", "--url", server.url)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert lines[0].split() == ["NAME", "STATE", "NOTE"]
    assert [line.split()[0] for line in lines[1:]] == ["P1", "P2"]
    assert [path.partition("?")[2] for _, path, _, _ in server.asked] == [
        "limit=1000",
        "limit=1000&after=proj_1",
    ]


def test_the_audit_ends_at_its_limit(antiphon: Run, server: Scripted) -> None:
    rows: list[dict[str, object]] = [
        {"id": n, "at": 60, "actor": "a", "action": "key.create", "target": "k", "detail": {}} for n in (3, 2)
    ]
    server.answers = [page(*rows, following="2"), page(rows[0], following="1")]
    ended = antiphon("audit", "--limit", "3", "--target", "key_000000000001", "--json", "--url", server.url)
    assert [row["id"] for row in json.loads(ended.stdout)["audit"]] == [3, 2, 3]
    queries = [path.partition("?")[2] for _, path, _, _ in server.asked]
    assert queries == ["limit=3&target=key_000000000001", "limit=1&target=key_000000000001&before=2"]


def test_the_audit_is_read_by_time_actor_and_project(antiphon: Run, server: Scripted) -> None:
    server.answers = [page()]
    words = ["--since", "2030-01-01", "--until", "2030-01-02", "--project", "default", "--actor", KEY]
    assert antiphon("audit", *words, "--url", server.url).stdout == "nothing was changed\n"
    ((_, path, _, _),) = server.asked
    query = f"limit=50&since=1893456000&until=1893542400&project=default&actor={KEY}"
    assert path == f"/admin/v1/audit?{query}"


PROJECT, USER, KEY = "proj_0000000000000000001", "user_0000000000000000001", "key_000000000001"
NAMED = {
    "projects": {"id": PROJECT, "name": "Research"},
    "users": {"id": USER, "name": "Ann", "email": "ann@example.com"},
    "keys": {"id": KEY, "prefix": "ak_a", "note": "bot", "project": PROJECT, "user": USER, "kind": "service"},
}


def test_keys_are_listed_with_the_names_of_owners(antiphon: Run, server: Scripted) -> None:
    other = {"id": "key_000000000002", "kind": "admin"}
    server.answers = [page(NAMED["keys"], other), page(NAMED["projects"]), page(NAMED["users"])]
    head, first, second = antiphon("keys", "list", "--wide", "--url", server.url).stdout.splitlines()
    assert head.split() == [
        *("PREFIX", "KIND", "PROJECT", "USER", "NOTE", "STATE", "MODELS", "ID", "PROJECT_ID", "USER_ID")
    ]
    assert first.split()[2:4] == ["Research", "Ann"] and first.split()[-3:] == [KEY, PROJECT, USER]
    assert second.split()[2:4] == second.split()[-2:] == ["-"] * 2


def test_names_that_are_not_yours_to_see_are_left_out(antiphon: Run, server: Scripted) -> None:
    server.answers = [page(NAMED["keys"]), page(NAMED["projects"]), (403, {})]
    ended = antiphon("keys", "list", "--url", server.url)
    assert ended.stdout.splitlines()[1].split()[2:4] == ["Research", USER]
    server.answers = [page(NAMED["keys"]), (500, {})]
    assert antiphon("keys", "list", "--url", server.url).returncode == 1


def test_the_audit_names_authors_and_targets(antiphon: Run, server: Scripted) -> None:
    row = {"id": 1, "at": 60, "actor": KEY, "action": "project.change", "target": PROJECT, "changes": []}
    server.answers = [page(row), page(NAMED["projects"]), page(NAMED["keys"])]
    head, first = antiphon("audit", "--url", server.url).stdout.splitlines()
    assert head.split() == ["AT", "ACTOR", "ACTION", "TARGET", "CHANGE"]
    assert re.split("  +", first.strip())[1:] == ["ak_a bot", "project.change", "Research"]


LIMIT, OPERATOR_KEY = "limit_0000000000000000001", "key_4f0c6e1a2b3d"
OPERATOR_ROW = {
    "id": OPERATOR_KEY,
    "prefix": "ak_4f0c6e1a2b3d",
    "kind": "admin",
    "family": "key_000000000009",
}
EARLIER_ROW = {"id": "key_000000000009", "prefix": "ak_000000000009", "kind": "admin", "family": None}


def entry(number: int, actor: str, action: str, target: str, /, **changes: object) -> dict[str, object]:
    about = changes.pop("about", "")
    listed = [{"field": name, "before": None, "after": value} for name, value in changes.items()]
    texts = {"actor": actor, "action": action, "target": target, "about": about, "changes": listed}
    return {"id": number, "at": 60, **texts}


def test_the_audit_shows_names_in_the_place_of_ids(antiphon: Run, server: Scripted, tmp_path: Path) -> None:
    limit = {"subject": "key", "target": KEY, "measure": "cost", "window": "month", "amount": "10.00"}
    rows = (
        entry(3, OPERATOR_KEY, "limit.create", LIMIT, about=f"key {KEY} cost month", **limit),
        entry(2, KEY, "membership.put", PROJECT, user=USER, role="member"),
        entry(1, "antiphon serve", "key.rotate", KEY, successor=OPERATOR_KEY, limits=LIMIT),
    )
    limits = {"id": LIMIT, "measure": "requests", "window": "minute", "amount": 600}
    (tmp_path / "admin.key").write_text("ak_4f0c6e1a2b3d_" + "x" * 43)
    env = {"ANTIPHON_HOME": str(tmp_path)}
    for wide in ([], ["--wide"]):
        keys = page(NAMED["keys"], OPERATOR_ROW)
        server.answers = [page(*rows), page(NAMED["projects"]), page(NAMED["users"]), keys, page(limits)]
        done = antiphon("audit", *wide, "--url", server.url, env=env)
        assert done.returncode == 0, done.stderr
        cells = [re.split("  +", line) for line in done.stdout.splitlines()[1:]]
        if wide:
            assert [row[-2:] for row in cells] == [
                [OPERATOR_KEY, LIMIT],
                [KEY, PROJECT],
                ["antiphon serve", KEY],
            ]
            assert cells[1][4] == f"user: Ann ({USER}); role: member"
        else:
            assert [row[1:] for row in cells] == [
                ["operator", "limit.create", "key ak_a bot cost month", "amount: 10.00"],
                ["ak_a bot", "membership.put", "Research", "user: Ann; role: member"],
                [
                    "antiphon serve",
                    "key.rotate",
                    "ak_a bot",
                    "successor: operator; limits: 600 requests per minute",
                ],
            ]


def test_the_audit_of_the_operator_is_found_also_before_a_rotation(
    antiphon: Run, server: Scripted, tmp_path: Path
) -> None:
    words = ["audit", "--actor", "operator", "--limit", "2", "--json", "--url", server.url]
    server.answers = [page(EARLIER_ROW), page(), page(), page(EARLIER_ROW)]
    refused = antiphon(*words, env={"ANTIPHON_HOME": str(tmp_path)})
    assert (refused.returncode, refused.stdout) == (1, "")
    assert (
        "this machine has no operator's key of this server; give a user's name, the prefix" in refused.stderr
    )
    (tmp_path / "admin.key").write_text("ak_4f0c6e1a2b3d_" + "x" * 43)
    later = [entry(number, OPERATOR_KEY, "key.create", KEY) for number in (4, 2)]
    earlier = [entry(number, "key_000000000009", "key.create", KEY) for number in (3, 1)]
    server.answers = [page(OPERATOR_ROW, EARLIER_ROW), page(*later), page(*earlier)]
    done = antiphon(*words, env={"ANTIPHON_HOME": str(tmp_path)})
    assert [row["id"] for row in json.loads(done.stdout)["audit"]] == [4, 3]
    actors = [path.partition("actor=")[2] for _, path, _, _ in server.asked if "/audit" in path]
    assert actors == [OPERATOR_KEY, "key_000000000009"]


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--actor", "you can see no user or key 'nobody'; give a user's name, the prefix of a key"),
        ("--target", "you can see no project, user or key 'nobody'; a limit or a price is named by its id"),
    ],
)
def test_an_unknown_name_is_no_empty_audit(antiphon: Run, server: Scripted, option: str, told: str) -> None:
    server.answers = [page(), page(), page()]
    done = antiphon("audit", option, "nobody", "--url", server.url)
    assert (done.returncode, done.stdout) == (1, "") and told in done.stderr


def test_a_long_change_is_one_line_in_a_pipe_and_below_its_row_in_a_terminal(
    antiphon: Run, server: Scripted
) -> None:
    note = " ".join(["word"] * 200)
    rows = [entry(number, "antiphon serve", "project.change", PROJECT, note=note) for number in (2, 1)]
    server.answers = [page(*rows), page(NAMED["projects"])]
    piped = antiphon("audit", "--url", server.url).stdout.splitlines()
    assert [line.partition("note: ")[2] for line in piped[1:]] == [note, note]
    server.answers = [page(*rows), page(NAMED["projects"])]
    raw = io.BytesIO()
    env = {"COLUMNS": "80", "TERM": "xterm", "NO_COLOR": "1"}
    antiphon("audit", "--url", server.url, env=env, stdout=Terminal(raw, "utf-8", write_through=True))
    shown = re.sub(r"\x1b\[[0-9;]*m", "", raw.getvalue().decode()).splitlines()
    assert [line.split() for line in shown[:2]] == [
        ["AT", "ACTOR", "ACTION", "TARGET"],
        ["1970-01-01", "00:01", "antiphon", "serve", "project.change", "Research"],
    ]
    assert shown[2].startswith("    note: word word") and max(map(len, shown)) <= 80


NOTE = "the bot of the second floor"
LONG: dict[str, object] = {
    "id": KEY, "kind": "access_token", "prefix": "ak_4f0c6e1a2b3d", "project": PROJECT, "user": USER,
    "note": NOTE, "name": "Department of Phonetics", "email": "ann.e.longname@example.com", "created_at": 0,
    "expires_at": 1_900_000_000, "at": 1_900_000_000, "actor": KEY, "target": USER,
    "action": "project.change", "changes": [{"field": "note", "before": NOTE, "after": NOTE}],
    "subject": "project", "measure": "prompt_tokens", "amount": 10**9, "window": "minute",
    "models": "claude-sonnet-4-5*", "currency": "USD", "input": "15.000000", "output": "75.25",
    "cached": "1.5", "request": "0", "since": 1_900_000_000, "until": 1_900_000_000,
}  # fmt: skip


class Terminal(io.TextIOWrapper):
    """Standard output that says that it is a terminal, of the width in COLUMNS."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "words", ["keys list", "audit", "limits list", "prices list", "projects list", "users list"]
)
def test_tables_fit_eighty_columns_and_break_no_name(antiphon: Run, server: Scripted, words: str) -> None:
    shown = []
    for more in ((), ("--wide",)):
        server.answers = [page(LONG), *[page(*({**LONG, "id": id_} for id_ in (PROJECT, USER, KEY)))] * 3]
        raw = io.BytesIO()
        terminal = Terminal(raw, "utf-8", write_through=True)
        env = {"COLUMNS": "80", "TERM": "xterm", "NO_COLOR": "1"}
        assert antiphon(*words.split(), *more, "--url", server.url, env=env, stdout=terminal).returncode == 0
        shown.append(re.sub(r"\x1b\[[0-9;]*m", "", raw.getvalue().decode()))
        assert max(map(len, shown[-1].splitlines())) <= 80
    narrow, wide = (set(text.split()) for text in shown)
    assert KEY not in narrow and not {word for word in narrow if word.endswith("_ID") or word == "ID"}
    assert "ID" in wide
    names = {"ak_4f0c6e1a2b3d", "Phonetics", "ann.e.longname@example.com", "claude-sonnet-4-5*"}
    assert names & narrow, "a name is whole"
    server.answers = [page(LONG), *[page(*({**LONG, "id": id_} for id_ in (PROJECT, USER, KEY)))] * 3]
    piped = antiphon(*words.split(), "--wide", "--url", server.url).stdout.splitlines()
    assert len(piped) == 2 and KEY in piped[1].split(), "a line for each row where nobody looks"


def test_a_new_key_is_alone_on_standard_output(antiphon: Run, server: Scripted) -> None:
    server.answers = [(201, {"id": "key_000000000001", "kind": "service", "secret": SECRET})]
    words = "service --project default --model a* --model b --endpoint /v1/* --expires 2030-01-01 --note bot"
    ended = antiphon("keys", "create", *words.split(), "--url", server.url)
    assert (ended.returncode, ended.stdout) == (0, f"{SECRET}\n")
    assert "key_000000000001" in ended.stderr and SECRET not in ended.stderr
    confined = {"models": ["a*", "b"], "endpoints": ["/v1/*"], "expires_at": 1_893_456_000, "note": "bot"}
    sent = {"kind": "service", "project": "default"} | confined
    assert server.asked == [("POST", "/admin/v1/keys", sent, None)]


def test_a_new_key_with_limits_is_one_request(antiphon: Run, server: Scripted) -> None:
    server.answers = [(201, {"id": "key_000000000001", "kind": "service", "secret": SECRET})]
    limits = ("requests=600/minute", "cost=12.50/month", "concurrent=4")
    words = [word for limit in limits for word in ("--limit", limit)]
    ended = antiphon("keys", "create", "service", "--project", "default", *words, "--url", server.url)
    assert ended.stdout == f"{SECRET}\n"
    ((_, _, sent, _),) = server.asked
    assert isinstance(sent, dict) and sent["limits"] == [
        {"measure": "requests", "amount": 600, "window": "minute"},
        {"measure": "cost", "amount": 12_500_000_000, "window": "month"},
        {"measure": "concurrent", "amount": 4},
    ]


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("words=5/minute", "Measures: requests, input_tokens"),
        ("requests", "as in requests=600/minute"),
        ("requests=5", "write requests=5/minute, day, week or month"),
        ("requests=5/hour", "minute, day, week or month"),
        ("concurrent=4/day", "leave /day out"),
        ("requests=1.5/day", "write an integer"),
        ("cost=much/day", "write a decimal"),
    ],
)
def test_a_wrong_limit_of_a_key_is_refused_before_sending(
    antiphon: Run, server: Scripted, limit: str, said: str
) -> None:
    ended = antiphon("keys", "create", "service", "--limit", limit, "--url", server.url)
    assert (ended.returncode, server.asked) == (1, []) and said in ended.stderr


def test_a_key_is_shown_with_its_limits_in_words(antiphon: Run, server: Scripted) -> None:
    limits = [
        {"measure": "tokens", "amount": 5, "window": "day", "models": "m*"},
        {"measure": "concurrent", "amount": 2, "window": None, "models": None},
    ]
    server.answers = [
        (200, {"id": "key_000000000001", "limits": limits}),
        (200, {"id": "key_000000000001", "limits": []}),
    ]
    lines = antiphon("keys", "show", "key_000000000001", "--url", server.url).stdout.splitlines()
    assert lines[1] == "limits  5 tokens per day to m*, 2 requests at once"
    assert (
        antiphon("keys", "show", "key_000000000001", "--url", server.url).stdout.splitlines()[1]
        == "limits  -"
    )


def test_what_a_key_may_be_without_is_taken_off(antiphon: Run, server: Scripted) -> None:
    server.answers = [(200, {"id": "key_000000000001", "limits": []})]
    words = ("--never-expires", "--all-models", "--all-endpoints", "--note", "")
    assert antiphon("keys", "update", "key_000000000001", *words, "--url", server.url).returncode == 0
    sent = {"note": "", "models": None, "endpoints": None, "expires_at": None}
    assert server.asked == [("PATCH", "/admin/v1/keys/key_000000000001", sent, None)]
    ended = antiphon("keys", "update", "k", "--never-expires", "--expires", "1h", "--url", server.url)
    assert ended.returncode == 1 and "not both" in ended.stderr


@pytest.mark.parametrize(
    ("words", "sent"),
    [
        (("--email", "ann@example.com"), {"email": "ann@example.com"}),
        (("--no-email", "--name", "Ann", "--note", ""), {"name": "Ann", "note": "", "email": None}),
    ],
)
def test_a_user_is_changed_where_it_is_named(
    antiphon: Run, server: Scripted, words: tuple[str, ...], sent: object
) -> None:
    server.answers = [(200, {"object": "user", "id": "user_0000000000000000001", "email": None})]
    ended = antiphon("users", "update", "user_0000000000000000001", *words, "--url", server.url)
    assert (ended.returncode, ended.stdout) == (0, "id     user_0000000000000000001\nemail  -\n"), (
        ended.stderr
    )
    assert server.asked == [("PATCH", "/admin/v1/users/user_0000000000000000001", sent, None)]


@pytest.mark.parametrize(
    ("words", "said"), [((), "name a field to change"), (("--email", "a@b", "--no-email"), "use one of them")]
)
def test_an_empty_or_contradictory_change_of_a_user_is_refused(
    antiphon: Run, server: Scripted, words: tuple[str, ...], said: str
) -> None:
    ended = antiphon("users", "update", "user_0000000000000000001", *words, "--url", server.url)
    assert (ended.returncode, server.asked) == (1, []) and said in ended.stderr


def test_what_a_rotation_asks_for(antiphon: Run, server: Scripted) -> None:
    server.answers = [
        (201, {"id": "key_000000000002", "kind": "service", "secret": SECRET, "expires_at": 1_893_456_000})
    ]
    ended = antiphon("keys", "rotate", "key_000000000001", "--overlap", "1h", "--url", server.url)
    assert ended.stdout == f"{SECRET}\n" and "key_000000000001 ends in 1h at the latest" in ended.stderr
    assert "key_000000000002, which ends at 2030-01-01 00:00 UTC;" in ended.stderr
    assert server.asked == [("POST", "/admin/v1/keys/key_000000000001/rotate", {"overlap": 3600}, None)]


OLD, NEW = (f"ak_{letter * 12}_{letter * 43}" for letter in "on")


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The operator's key on this machine."""
    path = tmp_path / "home" / "admin.key"
    path.parent.mkdir()
    path.write_text(f"{OLD}\n")
    path.chmod(0o600)
    return path


def test_a_rotated_operators_key_replaces_the_old_ones_file(
    antiphon: Run, server: Scripted, kept: Path
) -> None:
    env = {"ANTIPHON_HOME": str(kept.parent)}
    made = (201, {"id": "key_000000000002", "kind": "admin", "secret": NEW})
    server.answers = [(200, {"prefix": "ak_another"}), made, (200, {"prefix": OLD[:15]}), made]
    assert antiphon("keys", "rotate", "key_000000000000", "--url", server.url, env=env).returncode == 0
    assert kept.read_text() == f"{OLD}\n"
    ended = antiphon("keys", "rotate", "key_000000000001", "--url", server.url, env=env)
    assert f"{kept} contains the new key" in ended.stderr and ended.stdout == f"{NEW}\n"
    assert kept.read_text() == f"{NEW}\n" and kept.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in kept.parent.iterdir()] == ["admin.key"]


def test_a_revoked_operators_key_is_set_aside(antiphon: Run, server: Scripted, kept: Path) -> None:
    env = {"ANTIPHON_HOME": str(kept.parent)}
    server.answers = [(200, {"prefix": "ak_another"}), (200, {"prefix": OLD[:15]})]
    assert antiphon("keys", "revoke", "key_000000000000", "--url", server.url, env=env).returncode == 0
    assert kept.exists()
    ended = antiphon("keys", "revoke", "key_000000000001", "--url", server.url, env=env)
    assert f"{kept}.ended; antiphon store admin-key makes a new key" in ended.stderr
    assert [file.name for file in kept.parent.iterdir()] == ["admin.key.ended"]


def test_a_key_of_this_machine_that_has_ended_is_told(antiphon: Run, server: Scripted, kept: Path) -> None:
    refused = (401, {"error": {"message": "no such key", "code": "invalid_api_key"}})
    server.answers = [refused, refused]
    env = {"ANTIPHON_HOME": str(kept.parent)}
    said = antiphon("keys", "list", "--url", server.url, env=env).stderr
    assert f"The key in {kept} has ended" in said and "ANTIPHON_API_KEY" in said
    said = antiphon("keys", "list", "--url", server.url, env={**env, "ANTIPHON_API_KEY": NEW}).stderr
    assert "Set ANTIPHON_API_KEY" in said and "has ended" not in said


@pytest.mark.parametrize(
    ("words", "sent"),
    [
        ("projects rename default New", ("PATCH", "/projects/default", {"name": "New"})),
        (f"projects archive {PROJ}", ("PATCH", f"/projects/{PROJ}", {"archived": True})),
        (f"projects restore {PROJ}", ("PATCH", f"/projects/{PROJ}", {"archived": False})),
        (f"projects add-member {PROJ} {USER} --role owner", ("PUT", MEMBERSHIP, {"role": "owner"})),
        (f"projects remove-member {PROJ} {USER}", ("DELETE", MEMBERSHIP, None)),
        (f"users disable {USER}", ("PATCH", f"/users/{USER}", {"disabled": True})),
        (f"users enable {USER}", ("PATCH", f"/users/{USER}", {"disabled": False})),
        ("keys revoke key_000000000001", ("POST", "/keys/key_000000000001/revoke", {})),
    ],
)
def test_what_changes_something_sends_only_that(
    antiphon: Run, server: Scripted, words: str, sent: tuple[str, str, object]
) -> None:
    server.answers = [(204, None) if "remove" in words else (200, {})]
    ended = antiphon(*words.split(), "--url", server.url)
    assert (ended.returncode, ended.stdout) == (0, "")
    method, path, body = sent
    assert server.asked == [(method, f"/admin/v1{path}", body, None)]


def test_what_is_no_time_is_told_before_anything_is_sent(antiphon: Run, server: Scripted) -> None:
    for words in (("create", "service", "--expires", ""), ("rotate", "k", "--overlap", "soon")):
        ended = antiphon("keys", *words, "--url", server.url)
        assert ended.returncode == 1 and "write it as" in ended.stderr
    assert server.asked == []


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        (
            403,
            {"message": "only the operator's key may do this", "code": "permission_denied"},
            "do this. Set ANTIPHON_API_KEY",
        ),
        (404, {"message": "no such path.", "code": "route_not_found"}, "ANTIPHON_KEYS=true"),
        (409, {"message": "taken\x1b[2J", "code": "conflict"}, r"taken\x1b[2J"),
    ],
)
def test_a_refusal_is_one_line_that_helps(
    antiphon: Run, server: Scripted, status: int, error: dict[str, str], said: str
) -> None:
    server.answers = [(status, {"error": error})]
    ended = antiphon("users", "create", "Ann", "--url", server.url)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1)
    assert said in ended.stderr


@pytest.mark.parametrize("answer", [{"data": "x"}, {"data": ["x"]}, [], "x"])
def test_another_server_is_told_apart(antiphon: Run, server: Scripted, answer: object) -> None:
    server.answers = [(200, answer)]
    ended = antiphon("projects", "list", "--url", server.url)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "does not answer like Antiphon" in ended.stderr


def test_names_command_no_terminal(antiphon: Run, server: Scripted) -> None:
    server.answers = [page(project(1) | {"name": "\x1b]52;c;x\x07"})]
    assert "\x1b" not in antiphon("projects", "list", "--url", server.url).stdout


def test_the_operators_key_goes_to_this_machine_alone(tmp_path, monkeypatch) -> None:
    (tmp_path / "admin.key").write_text("ak-operator\n")
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path))
    monkeypatch.delenv("ANTIPHON_API_KEY", raising=False)
    for url in ("http://127.0.0.1:8000", "localhost:8000", "http://[::1]:1", "http://127.9.9.9"):
        assert admin.find_server(url) == (url, "ak-operator")
    for url in (
        "http://192.0.2.1",
        "https://example.com",
        "http://localhost.example.com",
        "127.0.0.1@host:1",
        "::",
    ):
        assert admin.find_server(url) == (url, None)
    monkeypatch.setenv("ANTIPHON_API_KEY", "ak-mine")
    assert admin.find_server("http://127.0.0.1:8000")[1] == "ak-mine"


def test_an_id_of_dots_is_no_path() -> None:
    with pytest.raises(CallFailed, match="no id"):
        admin._join_path(("projects", ".."), {})


def test_a_server_of_others_gets_no_operators_key(tmp_path, monkeypatch) -> None:
    (tmp_path / "admin.key").write_text("ak-operator\n")
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path))
    monkeypatch.delenv("ANTIPHON_API_KEY", raising=False)
    with publish_state(tmp_path) as notice:
        notice.record_ready("http://127.0.0.1:8123", 1)
        for url, key in (("localhost:8123", "ak-operator"), ("http://127.0.0.1:8124", None), ("h:x", None)):
            assert admin.find_server(url, may_be_foreign=True) == (url, key)
    assert admin.find_server("localhost:8123", may_be_foreign=True)[1] is None
    assert admin.find_server(None, may_be_foreign=True)[1] == "ak-operator"  # the server of the settings
