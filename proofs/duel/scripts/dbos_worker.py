"""DBOS: a durable workflow of one step; recovery is a restart under the same executor id."""

import sys
import threading

import handler
import sqlalchemy
from dbos import DBOS, DBOSConfig, SQLAlchemyDatasource

URL = handler.URL.replace("postgresql://", "postgresql+psycopg://")
CONFIG: DBOSConfig = {
    "name": "duel",
    "system_database_url": handler.URL,
    "executor_id": "executor-1",
    "application_version": "1",
}
INSERT = sqlalchemy.text("insert into effect (run, job, worker, pid) values (:r, :j, :w, :p)")


def main() -> None:
    DBOS(config=CONFIG)

    datasource = SQLAlchemyDatasource.create(URL)

    @DBOS.step()
    def plain(job: str) -> None:
        handler.handle(job)

    @datasource.transaction
    def transaction(job: str) -> None:
        handler.begin()
        values = dict(zip("rjwp", handler.row(job), strict=True))
        handler.at_the_write()
        datasource.sql_session().execute(INSERT, values)

    @DBOS.workflow()
    def charge() -> None:
        job = DBOS.workflow_id
        assert job is not None
        if handler.VARIANT == "plain":
            plain(job)
            return
        with handler.noting_errors():
            transaction(job)
            handler.note("wrote")

    DBOS.launch()
    handler.note("ready")
    if handler.WORKER == "A":
        DBOS.start_workflow(charge)
    threading.Event().wait()


def prepare() -> None:
    """Nothing to do: A makes the tables and starts the workflow."""


if __name__ == "__main__":
    {"prepare": prepare, "work": main}[sys.argv[1]]()
