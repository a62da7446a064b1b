"""`antiphon usage`, `antiphon prices` and `antiphon keys update`: what they send and what they print. With a
real server they are tested in tests/e2e/test_usage_commands.py."""

from urllib.parse import parse_qs, urlsplit

import pytest

from antiphon.cli.times import now
from antiphon.domain.ledger import EntryField
from tests.cli.conftest import Run
from tests.cli.scripted import *  # noqa: F403 - a fixture is found by its name; `__all__` lists it
from tests.cli.scripted import Scripted, page

DAY = 24 * 3600
NONE: dict[str, object] = {
    "requests": 0,
    "ok": 0,
    "cancelled": 0,
    "aborted": 0,
    "failed": 0,
    "unpriced": 0,
    "prompt_tokens": 0,
}
NONE |= {"cached_tokens": 0, "output_tokens": 0, "reasoning_tokens": 0, "cost": "0", "cost_nano": 0}
NONE |= {"mean_queue_ms": None, "mean_ttft_ms": None, "mean_total_ms": None}


def totals(requests: int, **said: object) -> dict[str, object]:
    return NONE | {"requests": requests, "cost": "1.5", "mean_ttft_ms": 12.4} | said


def report(*groups: dict[str, object], more: bool = False) -> tuple[int, object]:
    whole = totals(sum(int(str(each["requests"])) for each in groups), unpriced=2)
    return 200, {"object": "usage", "currency": "USD", "total": whole, "data": list(groups), "more": more}


def query(server: Scripted, number: int) -> dict[str, str]:
    return {name: said for name, (said,) in parse_qs(urlsplit(server.asked[number][1]).query).items()}


def test_bars_over_time_and_a_table(antiphon: Run, server: Scripted) -> None:
    today = now() // DAY * DAY
    server.answers = [
        report(totals(9000, by={"model": "m"}), totals(5, by={"model": "\x1b[2J"}), more=True),
        report(totals(4500, by={"day": today - DAY}), totals(9, by={"day": today})),
    ]
    words = ("usage", "--since", "3d", "--project", "default", "--only", "tag:a b=c=d", "--limit", "2")
    ended = antiphon(*words, "--url", server.url)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "\x1b" not in ended.stdout
    lines = ended.stdout.splitlines()
    assert lines[1].split() == ["DAY", "REQUESTS"]
    assert lines[2].split()[2:] == ["4,500", "█" * 40] and lines[3].split()[2] == "9"
    assert lines[4].split()[:3] == ["MODEL", "REQUESTS", "FAILED"] and "COST USD" in lines[4]
    assert lines[5].split()[:2] == ["m", "9,000"]
    assert lines[6].split()[0] == r"\x1b[2J"
    assert lines[7].split()[:2] == ["all", "9,005"]
    assert "first 2" in lines[8] and "2 requests had no price" in lines[9]
    said = query(server, 0)
    assert {name: said[name] for name in ("by", "project", "limit", "tag:a b")} == {
        "by": "model",
        "project": "default",
        "limit": "2",
        "tag:a b": "c=d",
    }
    assert 3 * DAY <= int(said["until"]) - int(said["since"]) <= 3 * DAY + 2
    assert query(server, 1)["by"] == "day"


@pytest.mark.parametrize(
    ("since", "bucket"), [("1d", "hour"), ("30d", "day"), ("90d", "week"), ("600d", "month")]
)
def test_the_bars_are_of_what_suits_the_time(
    antiphon: Run, server: Scripted, since: str, bucket: str
) -> None:
    server.answers = [report(), report()]
    assert antiphon("usage", "--since", since, "--url", server.url).returncode == 0
    assert query(server, 1)["by"] == bucket


def test_rows_are_called_as_people_know_them(antiphon: Run, server: Scripted) -> None:
    groups = [{"project": "proj_1", "key": "key_000000000001"}, {"project": "proj_gone", "key": "key_2"}]
    named = {"object": "project", "id": "proj_1", "name": "Research\x1b[2J"}
    for keys in (
        (200, {"data": [{"id": "key_000000000001", "prefix": "ak_a", "note": "bot"}], "next": None}),
        (403, {}),
    ):
        server.answers = [report(*(totals(1, by=each) for each in groups)), report()]
        server.answers += [page(named), keys]
        ended = antiphon("usage", "--by", "project,key", "--url", server.url)
        assert ended.returncode == 0, ended.stderr
        first, second = ended.stdout.splitlines()[3:5]
        called = "ak_a bot" if keys[0] == 200 else "key_000000000001"
        assert first.startswith(r"Research\x1b[2J  ") and called in first
        assert second.split()[:2] == ["proj_gone", "key_2"]


def test_by_time_the_table_is_the_chart(antiphon: Run, server: Scripted) -> None:
    server.answers = [report(totals(3, by={"day": 0}))]
    ended = antiphon(
        "usage", "--by", "day", "--since", "1970-01-01", "--until", "1970-01-05", "--url", server.url
    )
    assert ended.stdout.splitlines()[2].split()[:2] == ["1970-01-01", "00:00"]
    assert query(server, 0)["until"] == str(4 * DAY)
    assert len(server.asked) == 1


def test_files_are_what_the_server_says(antiphon: Run, server: Scripted) -> None:
    asked = (
        (("--format", "csv", "--by", "day,model"), "/admin/v1/usage", {"format": "csv", "by": "day,model"}),
        (("--format", "json"), "/admin/v1/usage", {"format": "json", "by": "model"}),
        (("--format", "csv", "--entries"), "/admin/v1/usage/entries", {"format": "csv"}),
        (("--format", "json", "--entries"), "/admin/v1/usage/entries", {"format": "jsonl"}),
    )
    for number, (words, path, said) in enumerate(asked):
        server.answers = [(200, b"a,b\xc3\xa9\r\n" * 100_000)]
        ended = antiphon("usage", *words, "--url", server.url)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.rstrip("\n").count("é") == 100_000
        assert urlsplit(server.asked[number][1]).path == path
        assert query(server, number).items() >= said.items()


@pytest.mark.parametrize("form", ["csv", "json"])
def test_files_of_sums_have_as_many_rows_as_are_asked_for(antiphon: Run, server: Scripted, form: str) -> None:
    server.answers = [(200, b"{}"), (200, b"{}")]
    antiphon("usage", "--format", form, "--limit", "3", "--url", server.url)
    antiphon("usage", "--format", form, "--url", server.url)
    assert query(server, 0)["limit"] == "3" and "limit" not in query(server, 1)


def test_the_table_has_twenty_rows_where_nobody_says_how_many(antiphon: Run, server: Scripted) -> None:
    server.answers = [report(), report()]
    assert antiphon("usage", "--url", server.url).returncode == 0
    assert query(server, 0)["limit"] == "20"


REFUSED = {
    "--format xml": "--format xml: it must be table or csv or json",
    "--entries": "--entries needs --format csv or --format json",
    "--entries --format table": "--format table shows sums, not --entries",
    "--entries --format jsonl": "--format jsonl: it must be csv or json",
    "--entries --limit 5": "--limit 5 is for sums, but --entries prints every generation: select fewer",
    "--entries --format csv --limit 1": "--limit 1 is for sums, but --entries prints every generation",
    "--entries --format json --limit 20": "--limit 20 is for sums",
    "--entries --format csv --by nonsense": "--by nonsense is for sums",
    "--entries --format csv --by model": "--by model is for sums",
    "--only model": "--only model: it takes NAME=VALUE",
    "--only =x": "there is no field without a name; fields: project, user",
    "--only user=1 --only user=2": "--only user=2: --only sets user already",
    "--project p --only project=q": "--only project=q: --project sets project already",
    "--only by=user": "--only by=user: there is no field by; fields: project",
    "--only limit=1": "--only limit=1: there is no field limit",
    "--only format=csv": "--only format=csv: there is no field format",
    "--only after=x": "--only after=x: there is no field after",
    "--only since=5": "--only since=5: there is no field since",
    "--only day=0": "--only day=0: use --since and --until to select a time",
    "--only tag:=x": "--only tag:=x: there is no field tag:",
    "--since soon": "--since: 'soon' is no time",
    "--until 2030-13-01": "--until: '2030-13-01' is no time",
    "--since 9990-12-31": "--since 9990-12-31 must be before now",
    "--since 1h --until 12h": "--since 1h must be before --until 12h",
    "--since 2020-02-01 --until 2020-01-01": "--since 2020-02-01 must be before --until 2020-01-01",
}


@pytest.mark.parametrize("words", REFUSED)
def test_options_without_effect_are_refused_as_they_were_typed(
    antiphon: Run, server: Scripted, words: str
) -> None:
    ended = antiphon("usage", *words.split(), "--url", server.url)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1), ended
    assert REFUSED[words] in ended.stderr
    assert server.asked == []


def test_a_refusal_is_one_line_of_the_command_too(antiphon: Run, server: Scripted) -> None:
    ended = antiphon("usage", "--only", "by=user", "--url", server.url)
    assert (ended.returncode, ended.stdout, server.asked) == (1, "", [])
    assert ended.stderr.startswith("antiphon: --only by=user: ") and ended.stderr.count("\n") == 1


def test_every_name_that_the_server_chooses_by_is_taken(antiphon: Run, server: Scripted) -> None:
    ids = ("project", "user", "key", "price")  # their names are looked up
    names = [each for each in (*EntryField, "tag:team") if each not in ids]
    server.answers = [(200, b"{}")]
    words = [word for name in names for word in ("--only", f"{name}=a=b")]
    assert antiphon("usage", "--format", "json", *words, "--url", server.url).returncode == 0
    assert query(server, 0).items() >= dict.fromkeys(map(str, names), "a=b").items()


def price(**said: object) -> dict[str, object]:
    card = {
        "id": "price_0000000000000000001",
        "models": "m*",
        "currency": "EUR",
        "input": "0.15",
        "cached": None,
        "output": "0.6",
    }
    return card | {"request": "0", "since": 60, "until": None, "created_at": 60, "note": ""} | said


def test_prices_are_added_as_they_are_written(antiphon: Run, server: Scripted) -> None:
    server.answers = [page(price()), (201, price())]
    words = "m* --input 0.15 --output 0.600000001 --from 2040-01-01 --until 2040-01-02 --note list"
    ended = antiphon("prices", "add", *words.split(), "--url", server.url)
    assert (ended.returncode, ended.stdout) == (0, "price_0000000000000000001\n")
    sent: dict[str, object] = {
        "models": "m*",
        "currency": "EUR",
        "input": "0.15",
        "output": "0.600000001",
        "note": "list",
    }
    sent |= {"since": 2_208_988_800, "until": 2_208_988_800 + DAY}
    assert server.asked[1][:3] == ("POST", "/admin/v1/prices", sent)
    server.answers = [page()]
    ended = antiphon("prices", "add", "m", "--input", "1", "--output", "2", "--url", server.url)
    assert ended.returncode == 1 and "--currency USD" in ended.stderr


def test_the_first_price_warns_that_it_sets_the_currency(antiphon: Run, server: Scripted) -> None:
    words = ("prices", "add", "m", "--input", "1", "--output", "2", "--url", server.url)
    said = "EUR is now the currency of all costs of this server"
    server.answers = [page(), (201, price())]
    assert said in antiphon(*words, "--currency", "EUR").stderr
    server.answers = [page(price(currency="USD", until=70)), (201, price())]
    assert said in antiphon(*words, "--currency", "EUR").stderr
    server.answers = [page(price(currency="USD", until=70), price()), (201, price())]
    assert said not in antiphon(*words).stderr
    sent = server.asked[-1][2]
    assert isinstance(sent, dict) and sent["currency"] == "EUR"


def test_prices_are_listed_and_ended(antiphon: Run, server: Scripted) -> None:
    server.answers = [page(price(), price(until=120), price(since=4_000_000_000))]
    lines = antiphon("prices", "list", "--url", server.url).stdout.splitlines()
    assert [" ".join(line.split()[6:]) for line in lines[1:]] == [
        "current",
        "ended 1970-01-01 00:02",
        "future",
    ]
    server.answers = [(200, price()), (200, price(until=2_208_988_800))]
    antiphon("prices", "end", "price_0000000000000000001", "--url", server.url)
    ended = antiphon("prices", "end", "price_0000000000000000001", "--at", "2040-01-01", "--url", server.url)
    assert "ends 2040-01-01" in ended.stderr
    assert [asked[:3] for asked in server.asked[1:]] == [
        ("DELETE", "/admin/v1/prices/price_0000000000000000001", None),
        ("PATCH", "/admin/v1/prices/price_0000000000000000001", {"until": 2_208_988_800}),
    ]


@pytest.mark.parametrize(
    ("words", "sent"),
    [
        ("--note bot", {"note": "bot"}),
        ("--model a* --model b", {"models": ["a*", "b"]}),
        ("--all-models --all-endpoints", {"models": None, "endpoints": None}),
        ("--endpoint /v1/* --expires 2040-01-01", {"endpoints": ["/v1/*"], "expires_at": 2_208_988_800}),
    ],
)
def test_a_key_is_changed_where_it_is_named(
    antiphon: Run, server: Scripted, words: str, sent: object
) -> None:
    server.answers = [(200, {"object": "key", "id": "key_000000000001", "note": "bot"})]
    ended = antiphon("keys", "update", "key_000000000001", *words.split(), "--url", server.url)
    assert ended.returncode == 0 and "key_000000000001" in ended.stdout
    assert server.asked == [("PATCH", "/admin/v1/keys/key_000000000001", sent, None)]


@pytest.mark.parametrize("words", ["", "--model a --all-models", "--endpoint a --all-endpoints"])
def test_a_change_of_nothing_or_of_both_is_refused(antiphon: Run, server: Scripted, words: str) -> None:
    ended = antiphon("keys", "update", "key_000000000001", *words.split(), "--url", server.url)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert server.asked == []


def test_the_note_of_a_key_can_be_emptied(antiphon: Run, server: Scripted) -> None:
    server.answers = [(200, {"id": "key_000000000001"})]
    antiphon("keys", "update", "key_000000000001", "--note", "", "--json", "--url", server.url)
    assert server.asked[0][2] == {"note": ""}


def test_usage_of_another_server_is_told_apart(antiphon: Run, server: Scripted) -> None:
    server.answers = [(200, {"data": "x"})] * 2
    ended = antiphon("usage", "--url", server.url)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "does not answer like Antiphon" in ended.stderr
