"""The processes that torchrun or srun has started for one run, as one of them sees the others."""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from bagua_algos.communication.communicator import CommunicationError
from bagua_algos.communication.rendezvous import Store, connect_store, meet
from experiments.real.assignment import Assignment
from experiments.real.failures import RunFailedError
from experiments.real.routes import LOOPBACK, interface_to, own_address
from host.errors import UserError

MEETING_S = 300
"""How long the first process waits for the last one to be started."""

AGAIN_S = 60
"""The same where a run goes on: one that does not come then may have died."""

_OUTSIDE = "an address outside"
"""In the store: of a host other than the first one."""

_MET = "has met"
"""Said in the store of a run by all of whose processes have met once."""


@dataclass(frozen=True, kw_only=True)
class Peers:
    """Those of a run that were started together.

    Args:
        assignment: this process's.
        store: for their words alone.
        started: when the run began: the same after restarts, where the store outlives them.
    """

    assignment: Assignment
    store: Store
    started: str

    def say(self, word: dict[str, Any]) -> None:
        """Tell all what worker 0 has decided."""
        self.store.set("decision", json.dumps(word))

    def hear(self) -> dict[str, Any]:
        """Wait for what worker 0 has decided. Raises `RunFailedError` where it never does."""
        self.store.set_timeout(timedelta(seconds=AGAIN_S))
        try:
            return json.loads(self.store.get("decision"))
        except RuntimeError as error:
            raise RunFailedError(
                f"worker {self.assignment.rank}: worker 0 has not said within {AGAIN_S} s where "
                "the run begins: has it died?"
            ) from error

    def heard(self, key: str) -> str | None:
        """The word `key` of any worker; None: nobody has said it, or the store is gone."""
        try:
            return self.store.get(key).decode() if self.store.check([key]) else None
        except RuntimeError:
            return None

    def interface(self) -> str | None:
        """The interface that leads to the workers on other hosts; None: it is not known.

        Raises `RunFailedError` where no worker of another host says where it is.
        """
        assignment = self.assignment
        if assignment.num_hosts == 1:
            return LOOPBACK
        if assignment.host_index == 0:
            return interface_to(self._address_outside())
        if assignment.local_rank == 0:
            self.store.set(_OUTSIDE, own_address(assignment.address))
        return interface_to(assignment.address)

    def _address_outside(self) -> str:
        try:
            return self.store.get(_OUTSIDE).decode()
        except RuntimeError as error:
            raise RunFailedError(
                f"worker {self.assignment.rank}: no worker on another machine has said its "
                "address: has it died?"
            ) from error


def join(assignment: Assignment) -> Peers:
    """Meet the others; a collective call. Raises `UserError` where they do not come."""
    is_first = assignment.rank == 0
    try:
        store = connect_store(
            assignment.address,
            assignment.port,
            makes_it=is_first and not assignment.has_store,
            world_size=assignment.world_size,
            timeout_s=AGAIN_S if assignment.has_store else MEETING_S,  # there already, or lost
        )
        now = datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")
        started = store.compare_set("started", "", now).decode()
        limit_s = AGAIN_S if store.check([_MET]) else MEETING_S
        met = meet(store, rank=assignment.rank, world_size=assignment.world_size, timeout_s=limit_s)
        store.set(_MET, "")
    except CommunicationError as error:
        raise UserError(str(error)) from error
    return Peers(assignment=assignment, store=met, started=started)
