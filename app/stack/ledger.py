"""``processes.json``: which processes were started, so that a new keeper adopts those of a killed one."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, field_serializer

from app.stack.files import write_private
from gyre.contracts.json_text import indented_json
from gyre.host.processes import ProcessIdentity, is_alive


class Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    process: ProcessIdentity
    fingerprint: str
    """Of the ProcessSpec it was started from."""

    @field_serializer("process")
    def _by_name(self, process: ProcessIdentity) -> dict[str, object]:
        """Keep the file's format, which keepers of other versions read; pydantic would write a list."""
        return process._asdict()


ENTRIES = TypeAdapter(dict[str, Entry])


class Ledger:
    """Name -> entry, written through to disk at each change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries = _read(path)

    def alive(self, name: str) -> Entry | None:
        """The entry of a process that still lives."""
        entry = self._entries.get(name)
        return entry if entry is not None and is_alive(entry.process) else None

    def any_alive(self) -> bool:
        return bool(self.living())

    def living(self) -> dict[str, ProcessIdentity]:
        """Name -> process, of those that still live."""
        return {name: entry.process for name, entry in self._entries.items() if is_alive(entry.process)}

    def drain(self) -> list[ProcessIdentity]:
        """Forget every entry; the processes among them that still live."""
        processes = [entry.process for entry in self._entries.values()]
        self._entries.clear()
        self._write()
        return [process for process in processes if is_alive(process)]

    def put(self, name: str, entry: Entry) -> None:
        self._entries[name] = entry
        self._write()

    def remove(self, name: str) -> None:
        if self._entries.pop(name, None) is not None:
            self._write()

    def _write(self) -> None:
        document = {name: entry.model_dump() for name, entry in self._entries.items()}
        write_private(self._path, indented_json(document))


def _read(path: Path) -> dict[str, Entry]:
    try:
        return ENTRIES.validate_json(path.read_text())
    except (FileNotFoundError, ValidationError):
        # Without it nothing is adopted; a process in the way then shows as a port in use.
        return {}
