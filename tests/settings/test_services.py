"""``[services]``: values are checked when the file is read, and no secret is shown."""

from pathlib import Path

import pytest

from gyre.contracts.errors import BadInput
from gyre.settings import Services, load_run_file

GIVEN = {
    "temporal_address": "temporal.example:7233",
    "postgres_dsn": "postgres://u:hidden@db.example:5432/gyre",
    "s3_endpoint": "https://s3.example",
    "s3_bucket": "gyre-1.runs",
    "s3_access_key": "key",
    "s3_secret_key": "secret",
}


def load(folder: Path, **changes: str) -> Services:
    lines = [f'{key} = "{value}"' for key, value in {**GIVEN, **changes}.items()]
    head = '[run]\nname = "r"\n[model]\npath = "m"\n[tasks]\ntrain = "t"\n[services]\n'
    (folder / "run.toml").write_text(head + "\n".join(lines))
    services = load_run_file(folder / "run.toml").services
    assert services is not None
    return services


def test_valid_values_are_accepted_and_the_dsn_is_one_that_sqlalchemy_knows(tmp_path: Path) -> None:
    assert load(tmp_path).postgres_dsn == "postgresql://u:hidden@db.example:5432/gyre"
    assert load(tmp_path, temporal_address="[::1]:7233").temporal_address == "[::1]:7233"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("temporal_address", value) for value in ("", ":7233", "host", "host:0", "host:x", "host:70000")),
        *(("temporal_address", value) for value in ("http://host:7233", "a b:1", "host:1\\n")),
        *(("s3_endpoint", value) for value in ("", "s3.example:9000", "ftp://h", "http://", "http://h:x")),
        *(("s3_bucket", value) for value in ("", "ab", "Upper", "a..b", "-ab", "a_b", "a" * 64, "a/b")),
        *(("postgres_dsn", value) for value in ("", "host=x password=hidden", "mysql://u:hidden@h/d")),
        ("postgres_dsn", "postgresql://u:hidden@h:x/d"),
    ],
)
def test_a_bad_value_is_refused_with_its_key_and_without_the_password(
    tmp_path: Path, key: str, value: str
) -> None:
    with pytest.raises(BadInput, match=rf"services\.{key}") as refused:
        load(tmp_path, **{key: value})
    assert "\n" not in str(refused.value)
    assert "hidden" not in str(refused.value)


def test_an_unknown_key_is_refused_with_the_keys_of_its_section(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"unknown key 'services\.port' \(allowed: postgres_dsn, s3_"):
        load(tmp_path, port="1")
