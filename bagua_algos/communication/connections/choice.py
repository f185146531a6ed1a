"""Whether the all-reduces of a model go through memory that its workers share."""

from bagua_algos.communication.communicator import Communicator
from bagua_algos.communication.connections.groups import limit_of
from bagua_algos.communication.process_group import ProcessGroupCommunicator


def with_shared_memory(communicator: Communicator, shared_memory: bool | None) -> Communicator:
    """The same workers, whose duplicates all-reduce through shared memory: None where they can. A
    collective call where nodes are known.

    Raises `ValueError` for True where there are no processes of one host that could; whether they
    can is known when a duplicate is made.
    """
    is_real = isinstance(communicator, ProcessGroupCommunicator)
    if not is_real or limit_of(communicator.group) is None:
        if shared_memory:
            kind = "another backend's" if is_real else f"{type(communicator).__name__}'s"
            raise ValueError(
                f"shared_memory=True is for gloo's workers, and these are {kind}: leave it out"
            )
        return communicator
    if communicator.shared_memory is shared_memory:
        return communicator
    return communicator.with_transport(shared_memory=shared_memory)
