"""An enqueue that loses against other transactions again and again was answered each time: it says
so, and not that nobody knows what became of it."""

from __future__ import annotations

import pytest

from faultline import App
from faultline.errors import DatabaseUnavailable, LockedOut
from faultline.producer import MAX_RETRIES
from faultline.service import service
from tests.serving import served
from tests.stage import Stage

# Outside of any transaction: its count outlives what is rolled back.
LOSING = """
create sequence {schema}.tries;
grant usage on sequence {schema}.tries to public;
create function {schema}.lose() returns trigger language plpgsql as $$
begin
    if nextval('{schema}.tries') <= %s then
        raise exception using errcode = '%s', message = 'lost';
    end if;
    return new;
end $$;
create trigger lose before insert on {schema}.ready
    for each row execute function {schema}.lose();
"""


def lose(stage: Stage, times: int, code: str) -> None:
    """The next so many enqueues are rolled back by the server."""
    stage.execute(LOSING.replace("<= %s", f"<= {times}").replace("'%s'", f"'{code}'"))


@pytest.mark.parametrize("code", ["40001", "40P01"])
def test_who_loses_every_time_is_told_that_nothing_was_changed(stage: Stage, code: str) -> None:
    lose(stage, MAX_RETRIES + 1, code)
    app = App(stage.url)
    with pytest.raises(LockedOut, match="rolled back by the server 4 times") as caught:
        app.enqueue("charge", {})
    assert (caught.value.verb, caught.value.tries) == ("enqueue", 4)
    assert "nothing was changed: run it again" in str(caught.value)
    assert stage.value("select count(*) from {schema}.job") == 0
    assert app.enqueue("charge", {})


def test_who_loses_less_often_does_not_notice(stage: Stage) -> None:
    lose(stage, MAX_RETRIES, "40P01")
    assert App(stage.url).enqueue("charge", {})
    assert stage.value("select count(*) from {schema}.job") == 1


def test_who_was_never_answered_is_told_that_nobody_knows(stage: Stage) -> None:
    lose(stage, MAX_RETRIES + 1, "57P01")
    with pytest.raises(DatabaseUnavailable, match="never answered"):
        App(stage.url).enqueue("charge", {})


def test_over_http_it_is_a_reason_to_try_again(stage: Stage) -> None:
    lose(stage, MAX_RETRIES + 1, "40001")
    with served(service(App(stage.url))) as client:
        answer = client.post("/jobs", {"task": "charge"})
        problem = answer.problem(503, "locked_out")
        assert "enqueue was rolled back by the server 4 times" in problem["detail"]
        assert answer.headers["retry-after"]
        assert client.post("/jobs", {"task": "charge"}).status == 201
