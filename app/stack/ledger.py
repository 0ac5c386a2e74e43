"""``processes.json``: the processes that a keeper started, so that its successor can adopt them."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, field_serializer

from app.stack.files import write_private
from gyre.contracts.json_text import indented_json
from gyre.host.processes import ProcessIdentity, is_alive


class Entry(BaseModel):
    """A started process."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    process: ProcessIdentity
    fingerprint: str
    """Fingerprint of the ProcessSpec it was started from."""

    @field_serializer("process")
    def _by_name(self, process: ProcessIdentity) -> dict[str, object]:
        """Keep the file's format, which keepers of other versions read; pydantic would write a list."""
        return process._asdict()


ENTRIES = TypeAdapter(dict[str, Entry])


class Ledger:
    """Entries by process name, written to disk at each change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries = _read(path)

    def alive(self, name: str) -> Entry | None:
        """Return the entry of a process if it is still alive."""
        entry = self._entries.get(name)
        return entry if entry is not None and is_alive(entry.process) else None

    def any_alive(self) -> bool:
        return bool(self.living())

    def living(self) -> dict[str, ProcessIdentity]:
        """Return the processes that are still alive, by name."""
        return {name: entry.process for name, entry in self._entries.items() if is_alive(entry.process)}

    def drain(self) -> list[ProcessIdentity]:
        """Forget every entry and return the processes that are still alive."""
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
        # Nothing is adopted then; a process that is in the way shows as a port in use.
        return {}
