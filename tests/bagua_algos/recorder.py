"""An observer that keeps what it hears."""

from dataclasses import dataclass, field

from bagua_algos.communication.communicator import Operation


@dataclass
class Recorder:
    operations: list[Operation] = field(default_factory=list)

    def on_operation(self, operation: Operation) -> None:
        self.operations.append(operation)

    @property
    def bytes_sent(self) -> float:
        return sum(operation.bytes_sent for operation in self.operations)

    @property
    def messages(self) -> list[tuple[str, int]]:
        """The name of each operation and the bytes that every worker handed in."""
        return [(operation.name, operation.num_bytes) for operation in self.operations]
