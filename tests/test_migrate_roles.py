"""Who may migrate, and who owns what then: superuser, CREATEROLE, plain owner, stranger.

Roles belong to the whole server, so each test has a schema name of its own, from which theirs are
made; they are dropped after its database.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import Connection

from faultline.errors import MigrationRefused
from faultline.migrate import is_current, migrate
from faultline.protocol import Protocol
from faultline.script import ROLES, migrations, script
from tests.installation import catalogue, run_one_job, schema_exists

pytestmark = pytest.mark.both_servers
ALL = [migration.name for migration in migrations()]


class Place:
    """An empty database and a schema name of this test's own."""

    def __init__(self, url: str, schema: str) -> None:
        self.url = url
        self.schema = schema

    def connect(self, user: str | None = None) -> Connection[Any]:
        """As the superuser, or as one of the users made below."""
        return psycopg.connect(as_user(self.url, user) if user else self.url, autocommit=True)

    def user(self, name: str, attributes: str = "", *, owner: bool = True) -> str:
        """A login that is no superuser; with `owner` the database is its."""
        user = f"{self.schema}_{name}"
        with self.connect() as conn:
            conn.execute(f"create role \"{user}\" login password 'pw' {attributes}")
            if owner:
                conn.execute(f'alter database {conn.info.dbname} owner to "{user}"')
        return user


def as_user(url: str, user: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{quote(user)}:pw@{parts.hostname}:{parts.port}"))


@pytest.fixture
def own_schema(server_url: str) -> Iterator[str]:
    """A schema name whose roles are dropped in the end, after the database."""
    schema = f"s_{uuid.uuid4().hex[:12]}"
    yield schema
    with psycopg.connect(server_url, autocommit=True) as conn:
        of_this_schema = "select quote_ident(rolname) from pg_roles where starts_with(rolname, %s)"
        roles = [row[0] for row in conn.execute(of_this_schema, (schema,))]
        if roles:
            conn.execute(f"drop role {', '.join(roles)}")


@pytest.fixture
def place(own_schema: str, empty_database: str) -> Place:
    return Place(empty_database, own_schema)


def owners(conn: Connection[Any], schema: str) -> set[str]:
    """Who owns anything in the schema, or the schema."""
    rows = conn.execute(
        "select nspowner::regrole::text from pg_namespace where nspname = %(schema)s "
        "union select proowner::regrole::text from pg_proc "
        "where pronamespace = %(schema)s::regnamespace "
        "union select relowner::regrole::text from pg_class "
        "where relnamespace = %(schema)s::regnamespace",
        {"schema": schema},
    )
    return {row[0] for row in rows}


def granted(conn: Connection[Any], schema: str) -> set[tuple[str, str]]:
    """Which kind of thing (f: function, else relkind) somebody other than its owner may use."""
    rows = conn.execute(
        "select 'f', case grantee when 0 then 'PUBLIC' else grantee::regrole::text end "
        "from pg_proc, aclexplode(coalesce(proacl, acldefault('f', proowner))) "
        "where pronamespace = %(schema)s::regnamespace and grantee <> proowner "
        "union select relkind::text, case grantee when 0 then 'PUBLIC' "
        "else grantee::regrole::text end from pg_class, aclexplode(relacl) "
        "where relnamespace = %(schema)s::regnamespace and grantee <> relowner",
        {"schema": schema},
    )
    return {(row[0], row[1]) for row in rows}


def test_what_a_superuser_installs_belongs_to_a_role_that_is_none(place: Place) -> None:
    with place.connect() as conn:
        migrate(conn, place.schema)
        assert owners(conn, place.schema) == {f"{place.schema}_owner"}
        powers = "select rolsuper or rolcanlogin or rolcreaterole from pg_roles where rolname = %s"
        for role in ("owner", *ROLES):
            assert conn.execute(powers, (f"{place.schema}_{role}",)).fetchone() == (False,)


def test_roles_may_call_functions_and_read_views_but_never_touch_a_table(place: Place) -> None:
    with place.connect() as conn:
        migrate(conn, place.schema)
        callers = {("f", f"{place.schema}_{role}") for role in ROLES}
        readers = {("v", f"{place.schema}_{role}") for role in ("reader", "operator")}
        assert granted(conn, place.schema) == callers | readers


def test_a_plain_owner_of_a_database_installs_without_roles_and_nobody_else_gets_in(
    place: Place,
) -> None:
    user = place.user("Dev-1 o'neil")  # as users are really called
    stranger = place.user("stranger", owner=False)
    with place.connect(user) as conn:
        assert migrate(conn, place.schema, roles=False) == ALL
        assert migrate(conn, place.schema, roles=False) == []
        assert is_current(conn, place.schema)
        assert owners(conn, place.schema) == {f'"{user}"'}
        assert granted(conn, place.schema) == set()
        run_one_job(conn, place.schema)
    with place.connect(stranger) as conn, pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute(f"select {place.schema}.enqueue('charge')")
    with place.connect() as conn:  # a superuser may upgrade it; it stays the user's
        assert migrate(conn, place.schema, roles=False) == []
        assert owners(conn, place.schema) == {f'"{user}"'}


def test_without_roles_a_guard_knows_who_is_exempt(place: Place) -> None:
    """There is no role whose members could be workers."""
    user, other = place.user("dev"), place.user("other", owner=False)
    with place.connect(user) as conn:
        migrate(conn, place.schema, roles=False)
        conn.execute("create table charge (n int); grant insert on charge to public")
        Protocol(place.schema).guard("charge", [user]).run(conn)
        conn.execute("insert into charge values (1)")
    with place.connect(other) as conn, pytest.raises(psycopg.Error) as refused:
        conn.execute("insert into charge values (2)")
    assert refused.value.sqlstate == "LF006"


@pytest.mark.parametrize("prepared", [False, True], ids=["no schema", "an empty schema of its own"])
def test_a_superuser_cannot_install_without_roles(place: Place, prepared: bool) -> None:
    with place.connect() as conn:
        if prepared:
            conn.execute(f"create schema {place.schema}")
        with pytest.raises(MigrationRefused, match=r"superuser.* leave out --no-roles"):
            migrate(conn, place.schema, roles=False)
        assert schema_exists(conn, place.schema) is prepared


def test_not_even_the_printed_script_lets_a_superuser_own_the_functions(place: Place) -> None:
    with place.connect() as conn:
        steps = "\n".join(["begin;", *script(place.schema, roles=False), "commit;"])
        with pytest.raises(psycopg.errors.RaiseException, match="ordinary user"):
            conn.execute(steps)
        conn.execute("rollback")
        assert not schema_exists(conn, place.schema)


def test_an_empty_schema_that_a_superuser_prepared_is_handed_over(place: Place) -> None:
    with place.connect() as conn:
        conn.execute(f"create schema {place.schema}")
        migrate(conn, place.schema)
        assert owners(conn, place.schema) == {f"{place.schema}_owner"}
        run_one_job(conn, place.schema)


def test_an_owner_with_createrole_installs_with_roles_and_upgrades(place: Place) -> None:
    user = place.user("dba", "createrole")
    with place.connect(user) as conn:
        assert migrate(conn, place.schema) == ALL
        before = catalogue(conn, place.schema)
        assert migrate(conn, place.schema) == []
        assert catalogue(conn, place.schema) == before
        assert owners(conn, place.schema) == {f"{place.schema}_owner"}
    with place.connect() as conn:
        run_one_job(conn, place.schema)


def test_roles_can_be_added_to_an_installation_made_without(place: Place) -> None:
    user = place.user("dba", "createrole")
    with place.connect(user) as conn:
        migrate(conn, place.schema, roles=False)
        assert migrate(conn, place.schema) == []
        assert owners(conn, place.schema) == {user}
        assert ("f", f"{place.schema}_worker") in granted(conn, place.schema)
        run_one_job(conn, place.schema)


def test_without_createrole_one_sentence_says_what_to_do(place: Place) -> None:
    with place.connect(place.user("dev")) as conn:
        with pytest.raises(MigrationRefused) as caught:
            migrate(conn, place.schema)
        assert not schema_exists(conn, place.schema)
    for fact in (f"{place.schema}_dev", "may not migrate", "CREATEROLE", "--no-roles"):
        assert fact in str(caught.value)


def test_a_stranger_cannot_migrate_what_others_installed(place: Place) -> None:
    stranger = place.user("stranger", owner=False)
    with place.connect() as conn:
        migrate(conn, place.schema)
        before = catalogue(conn, place.schema)
    with place.connect(stranger) as conn, pytest.raises(MigrationRefused, match="may not read"):
        migrate(conn, place.schema)
    with place.connect() as conn:
        assert catalogue(conn, place.schema) == before
