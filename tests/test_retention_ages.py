"""How old what is forgotten has to be: ages that cannot be meant are rejected, the rest is kept."""

from __future__ import annotations

import psycopg
import pytest

from faultline.jobs import Retained
from tests.stage import Stage
from tests.test_partitions import age, exists, finished, months

pytestmark = pytest.mark.both_servers


@pytest.mark.parametrize(
    "older_than",
    [
        "-1000 years 360002 days",  # as intervals compare, 2 days; as a moment, in 2041
        "1 month -30 days",
        "1000000 years",
        "-5900000 years 2147483647 days",
        "2500000000 hours",
        None,
    ],
)
def test_an_age_that_is_no_age_is_rejected_and_drops_nothing(
    stage: Stage, older_than: str | None
) -> None:
    kept = finished(stage)
    with pytest.raises(psycopg.errors.DatabaseError) as refused:
        stage.execute("select {schema}.drop_partitions(%s::text::interval)", older_than)
    assert refused.value.sqlstate == "LF003"
    assert exists(stage, kept)


def test_an_infinite_age_is_rejected(stage: Stage) -> None:
    if stage.conn.info.server_version < 170000:
        pytest.skip("PostgreSQL 17 is the first with infinite intervals")
    for older_than in ("infinity", "-infinity"):
        with pytest.raises(psycopg.errors.DatabaseError) as refused:
            stage.execute("select {schema}.drop_partitions(%s::text::interval)", older_than)
        assert refused.value.sqlstate == "LF003"


@pytest.mark.parametrize("years", [57, 1000])
def test_an_age_before_1970_drops_nothing(stage: Stage, years: int) -> None:
    before = months(stage, "job")
    kept = age(stage, finished(stage))
    stage.execute("select {schema}.drop_partitions(make_interval(years => %s))", years)
    assert exists(stage, kept)
    assert set(before) <= set(months(stage, "job"))


def test_a_retention_of_100_years_forgets_no_month(stage: Stage) -> None:
    stage.verbs.set_retention(36_500).run(stage.conn)
    before = months(stage, "job")
    assert stage.verbs.apply_retention().run(stage.conn) == Retained([], False)
    assert months(stage, "job") == before
