"""What the gateway must know of a harness: the ``[[roles]]`` rules of its catalogue file."""

import tomllib
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from gyre.contracts.errors import BadInput
from gyre.contracts.roles import RoleRule
from gyre.settings.problems import first_problem

CATALOGUE = Path(__file__).parents[1] / "sandbox" / "catalogue"
RULES = TypeAdapter(tuple[RoleRule, ...])


def role_rules(harness: str) -> tuple[RoleRule, ...]:
    """The rules in their order. Raises BadInput when there is no such file or it is not valid."""
    path = CATALOGUE / f"{harness}.toml"
    try:
        return RULES.validate_python(tuple(tomllib.loads(path.read_text()).get("roles", ())))
    except OSError as error:
        raise BadInput(f"harness {harness!r}: its catalogue file cannot be read: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"harness {harness!r}: its catalogue file is not TOML: {error}") from None
    except ValidationError as error:
        raise BadInput(f"harness {harness!r}: roles: {first_problem(error)}") from None
