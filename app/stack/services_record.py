"""``services.json``: the ports and credentials of the embedded services, kept across restarts."""

import secrets

from pydantic import BaseModel, ConfigDict

from app.stack.files import StateDir, read_record, write_private
from gyre.host.ports import HOST, choose_port
from gyre.settings.services import Services

PORTS = ("postgres", "temporal", "temporal_ui", "s3")
DATABASE = BUCKET = "gyre"


class ServicesRecord(BaseModel):
    """Contents of ``services.json``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ports: dict[str, int]
    postgres_password: str
    s3_access_key: str
    s3_secret_key: str

    def postgres_dsn(self, database: str) -> str:
        return f"postgresql://gyre:{self.postgres_password}@{HOST}:{self.ports['postgres']}/{database}"

    def services(self) -> Services:
        return Services(
            temporal_address=f"{HOST}:{self.ports['temporal']}",
            temporal_ui=f"http://{HOST}:{self.ports['temporal_ui']}",
            postgres_dsn=self.postgres_dsn(DATABASE),
            s3_endpoint=f"http://{HOST}:{self.ports['s3']}",
            s3_bucket=BUCKET,
            s3_access_key=self.s3_access_key,
            s3_secret_key=self.s3_secret_key,
        )


def read_services_record(state: StateDir) -> ServicesRecord | None:
    """Return the record, or None before the first start. Raises BadInput if the file is damaged."""
    return read_record(ServicesRecord, state.services)


def ensure_services_record(state: StateDir) -> ServicesRecord:
    """Return the record, choosing ports and credentials if this is the first start."""
    record = read_services_record(state)
    if record is None:
        ports: dict[str, int] = {}
        for name in PORTS:
            ports[name] = choose_port(set(ports.values()))
        record = ServicesRecord(
            ports=ports,
            postgres_password=secrets.token_hex(16),
            s3_access_key=secrets.token_hex(10),
            s3_secret_key=secrets.token_hex(20),
        )
        write_private(state.services, record.model_dump_json(indent=2))
    return record
