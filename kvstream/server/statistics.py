"""What INFO tells of the commands that ran and the errors that were answered."""

from dataclasses import dataclass


@dataclass(slots=True)
class CommandStatistics:
    """One command's calls, as ``cmdstat_*`` counts them."""

    calls: int = 0
    seconds: float = 0.0
    rejected: int = 0
    failed: int = 0


class Statistics:
    """Counters since the start, or since CONFIG RESETSTAT."""

    def __init__(self) -> None:
        self.commands: dict[str, CommandStatistics] = {}
        self.errors: dict[str, int] = {}
        self.calls = 0
        self.connections = 0
        self.rejected_connections = 0
        self.bytes_in = 0
        self.bytes_out = 0

    def of(self, name: str) -> CommandStatistics:
        found = self.commands.get(name)
        if found is None:
            found = self.commands[name] = CommandStatistics()
        return found

    def ran(self, name: str, seconds: float) -> None:
        """Count a call that was answered without an error."""
        self.calls += 1
        row = self.of(name)
        row.calls += 1
        row.seconds += seconds

    def failed(self, name: str, code: str, seconds: float) -> None:
        """Count a call that ended in an error."""
        self.ran(name, seconds)
        self.of(name).failed += 1
        self._error(code)

    def rejected(self, code: str, name: str = "") -> None:
        """Count a request that was refused before it ran."""
        if name:
            self.of(name).rejected += 1
        self._error(code)

    def _error(self, code: str) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1

    @property
    def error_replies(self) -> int:
        return sum(self.errors.values())

    def reset(self) -> None:
        self.__init__()  # type: ignore[misc]
