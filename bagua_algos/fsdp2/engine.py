"""Hangs an algorithm on a model that FSDP2 shards: replicas train by it, shard beside shard.

                   shard 0     shard 1
    replica 0         a  <------> b         along a row FSDP2 gathers weights and reduces gradients;
                      ^           ^
                      |           |         along a column the algorithm does what it relaxes: a
                      v           v         worker is a process that holds the same shards of
    replica 1         c  <------> d         another replica

A bucket is what a process holds of one unit. When FSDP2 has reduced a unit's gradients, it calls
the hooks of its parameters as autograd would. From there on all goes as in
`bagua_algos.engine.engine`: buckets travel in one order, on lanes beside the rest of backward.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from bagua_algos.checkpoint import ALGORITHM, OPTIONS, options_of_state
from bagua_algos.communication.communicator import Averager, Communicator
from bagua_algos.engine.algorithm import Algorithm, Context
from bagua_algos.engine.backward import BackwardTracker
from bagua_algos.engine.bucket import Bucket
from bagua_algos.engine.dispatcher import Dispatcher
from bagua_algos.engine.parameter_groups import check_parameters
from bagua_algos.engine.script.accumulation import Accumulation
from bagua_algos.engine.script.attached import Attached
from bagua_algos.engine.script.changes import (
    ScriptChanges,
    check_is_called_plainly,
    check_is_not_wrapped,
)
from bagua_algos.engine.script.closures import StepClosure
from bagua_algos.engine.script.copies import ForwardHook, leave_out_of_copies
from bagua_algos.engine.script.same_model import (
    Meeting,
    check_same_optimizer,
    check_still_same_model,
)
from bagua_algos.engine.untrained import (
    broadcast_weights_,
    broadcast_where_different_,
    make_alike_,
    warn_of_frozen,
)
from bagua_algos.fsdp2.bucket import WholeBucket, build_buckets
from bagua_algos.fsdp2.checks import (
    check_dtypes,
    check_gradients,
    check_model,
    check_no_scaler,
    check_replicas,
    check_settings,
    check_shares,
    check_synchronized,
    check_workers,
)
from bagua_algos.fsdp2.consensus import averaged
from bagua_algos.fsdp2.optimizer import of_shards
from bagua_algos.fsdp2.shards import (
    Unit,
    count_change_of_gathered,
    is_distributed,
    local,
    reshard,
    shard_workers,
    synchronize_gradients,
    units,
)


def check_can_train(
    model: nn.Module, optimizer: Optimizer, algorithm: Algorithm, communicator: Communicator
) -> None:
    """Raise `ValueError` where an engine for these would, as far as one process alone can tell."""
    check_is_not_wrapped(model)
    reshard(model)
    check_parameters(model, optimizer, algorithm)
    check_model(model)
    algorithm.check(communicator.world_size, optimizer)
    algorithm.check_shards()


class ShardedEngine(Attached):
    """One algorithm at work on one replica's shards, with the same shards of the other replicas.

    All replicas take the weights and buffers of the first. A parameter without a gradient in some
    backward counts as a gradient of zero there.

    Args:
        model: `fully_shard` was called with it, over one dimension of a mesh.
        optimizer: over the model's parameters.
        algorithm: the relaxation.
        communicator: the processes that hold the same shards of the other replicas.
        timeout_s: the longest wait for one bucket.

    Raises:
        ValueError: what `bagua_algos.fsdp2.checks` refuses.
    """

    _sees_all_gradients = False
    _holds_weights = False

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        algorithm: Algorithm,
        communicator: Communicator,
        *,
        timeout_s: float,
    ) -> None:
        check_can_train(model, optimizer, algorithm, communicator)
        self.model, self.algorithm = model, algorithm
        parts = units(model)
        first = next(iter(parts[0].parameters.values()))
        self._shard_workers = shard_workers(first)
        check_workers(communicator, self._shard_workers.members)
        self._buckets = build_buckets(parts, communicator.world_size)
        device = first.device
        check_shares(self._shard_workers, sum(b.numel for b in self._buckets), device)
        algorithm.load(device)
        # As many lanes on every process, also where some hold nothing of a unit: all must have made
        # as many process groups for torch to give the next one a name that they share.
        self.dispatcher = Dispatcher(
            algorithm, communicator, device, num_buckets=len(parts), timeout_s=timeout_s
        )
        shards = [shard for bucket in self._buckets for shard in bucket.shards]
        self.context = Context(
            buckets=self._buckets,
            communicator=self.dispatcher.communicator,
            optimizer=of_shards(optimizer, shards),
        )
        wholes = [WholeBucket(bucket) for bucket in self._buckets]
        self._changes = ScriptChanges(model, optimizer, wholes)
        self.backward = BackwardTracker(wholes, self._launch_bucket)
        self._accumulation = Accumulation(is_needed=self.dispatcher.may_take_gradients)
        self._closure = StepClosure(self._begin_step)
        with self.dispatcher.closed_on_error():
            self._start_equal(parts, optimizer)
            self._hooks = self._attach(optimizer)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of backward passes inside only accumulate on this process, whole: neither
        shards nor replicas are heard of.
        """
        try:
            with super().no_sync():
                synchronize_gradients(self.model, enabled=False)
                yield
        finally:
            synchronize_gradients(self.model, enabled=self._synchronizing)

    def empty_backward(self) -> None:
        """Refused: the processes of a replica gather weights from each other in forward and
        backward.
        """
        raise ValueError(
            "empty_backward is not for a model that fully_shard has divided, whose processes need "
            "each other in forward and backward: run any batch, with its loss times 0"
        )

    def pause(self) -> None:
        """Wait for what has been begun; nothing goes on between two steps but after an error."""
        self.dispatcher.wait_exposed()

    @contextmanager
    def consensus(self, averager: Averager | None = None) -> Iterator[float]:
        """The model to evaluate or save: within, every replica is the mean of all replicas.

        Yields the spread of the replicas' weights about that mean: the root of their mean squared
        distance, over the mean's norm. A collective call of all processes. Buffers become the mean
        of all processes' and stay it, and so do frozen parameters that a script has changed;
        weights that differ between replicas return afterwards.
        """
        averager, run = averager or self.context.communicator, self.dispatcher.run
        meetings = self._meetings(averager)
        check_still_same_model(self.model, meetings, self._buckets[0].gradients.device)
        keeper = type(self.algorithm).__name__ if self.algorithm.workers_agree else None
        self._make_untrained_alike_(averager, keeper)
        with (
            averaged(
                self._buckets,
                averager,
                self._shard_workers,
                run,
                self._write_weights,
                kept_equal_by=keeper,
            ) as spread,
            self._looking_on(spread),
        ):
            yield spread

    def _meetings(self, averager: Averager) -> list[Meeting]:
        """Of the replicas of its shards, and of the shards of its replica."""
        return [
            Meeting(averager, self.context.communicator, self.dispatcher.run),
            Meeting(self._shard_workers, self._shard_workers, lambda _, job: job()),
        ]

    def _make_untrained_alike_(self, averager: Averager, kept_equal_by: str | None) -> None:
        """Buffers and frozen parameters: of all replicas, and what is no shard of all processes."""
        reshard(self.model)
        own, apart = set(self._frozen), []
        frozen = {name: p for name, p in self.model.named_parameters() if p in own}
        held = {name: local(p) for name, p in frozen.items()}
        buffers = list(self.model.buffers())
        self.dispatcher.run(
            "averaging of buffers",
            lambda: apart.extend(make_alike_([*buffers, *held.values()], averager)),
        )
        everywhere = [x for name, x in held.items() if not is_distributed(frozen[name])]
        apart += make_alike_([*buffers, *everywhere], self._shard_workers)
        if kept_equal_by is not None:
            warn_of_frozen(kept_equal_by, held, apart)

    def _identity(self) -> dict[str, Any]:
        """What a state belongs to, in words for errors."""
        replicas, shards = self.context.communicator, self._shard_workers
        return {
            ALGORITHM: type(self.algorithm).__name__,
            OPTIONS: options_of_state(self.algorithm),
            "layout of shards": [(b.numel, str(b.gradients.dtype)) for b in self._buckets],
            "number of replicas": replicas.world_size,
            "replica": list(replicas.ranks),
            "shard": [shards.ranks[0], shards.world_size],
        }

    def _attach(self, optimizer: Optimizer) -> list[RemovableHandle]:
        leave_out_of_copies(self.model, load_hooks=self.algorithm.keeps_weights)
        return [
            self.model.register_forward_pre_hook(ForwardHook(self._before_forward)),
            *self.backward.attach(self._take_gradient),
            *self._attach_to(optimizer),
        ]

    def _start_equal(self, parts: list[Unit], optimizer: Optimizer) -> None:
        replicas, run = self.context.communicator, self.dispatcher.run
        self._frozen = [p for p in self.model.parameters() if not p.requires_grad]
        untrained = [*self._frozen, *self.model.buffers()]
        everywhere = [local(x) for x in untrained if not is_distributed(x)]
        device = self._buckets[0].gradients.device
        check_replicas(replicas, parts, self._shard_workers.ranks[0], device)
        check_same_optimizer(self.model, optimizer, self._meetings(replicas), device)
        weights = [bucket.weights for bucket in self._buckets]
        broadcast_weights_(weights, replicas, run)
        self._write_weights()
        held = [local(x) for x in untrained]
        run("broadcast of buffers", lambda: broadcast_where_different_(held, replicas))
        broadcast_where_different_(everywhere, self._shard_workers)
        self._init_state()
        self._write_weights()

    def _before_forward(self, module: nn.Module) -> None:
        check_is_called_plainly()
        if self.is_consensus:
            return
        if not self._synchronizing:
            self._take_local_gradient(None)
        self._begin_forward()

    def _before_begin(self) -> None:
        check_dtypes(self._buckets)
        check_settings(self.model)

    def _launch_bucket(self, bucket: Bucket) -> None:
        own = self._buckets[bucket.index]
        first = self.backward.ends_first
        self.dispatcher.submit_moment("on_bucket_ready", self.context, own, may_wait=first)

    def _after_backward(self) -> None:
        left_out = self.backward.left_out
        self._end_backward()
        if left_out:
            self._check_are_the_models(left_out)
        self.dispatcher.wait_exposed()
        if self._end_pass():
            count_change_of_gathered(self.model)
        self._note_met()

    def _begin_step(self) -> None:
        if not self._accumulation.check_step():
            self._check_are_the_models(self.backward.parameters)
            check_gradients(self._buckets)
        check_synchronized(self.model)
        if self._remembers:
            check_no_scaler()
        self._act_where_step_begins()

    def _check_are_the_models(self, parameters: Sequence[nn.Parameter]) -> None:
        reshard(self.model)  # gathered weights stand in the places of their parameters
        self._changes.check_are_the_models(parameters)

    def _after_step(self) -> None:
        self._act("on_step_end")
        self._count_step()

    def _act(self, moment: str) -> None:
        """Let the algorithm act between backward and forward, and wait for it."""
        if self.dispatcher.acts_at(moment):
            self.dispatcher.submit_moment(moment, self.context)
            self.dispatcher.wait_exposed()
            reshard(self.model)

    def _after_own_moment(self) -> None:
        self._write_weights()

    def _held_weights(self) -> Sequence[Tensor]:
        """The shards themselves: a bucket's weights are a copy of them."""
        return [local(shard.whole) for bucket in self._buckets for shard in bucket.shards]

    def _write_weights(self) -> None:
        """The buckets' weights go to their shards, and gathered ones, which are old now, away."""
        for bucket in self._buckets:
            bucket.write_back()
        reshard(self.model)
