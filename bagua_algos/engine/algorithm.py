"""The base class of algorithms: configuration, state, and actions at the moments of a step."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim import Optimizer

from bagua_algos.communication.communicator import Communicator
from bagua_algos.compressors.compressor import REAL_DTYPES, Compressor
from bagua_algos.engine.background import Background
from bagua_algos.engine.bucket import Bucket, Move


@dataclass(frozen=True, kw_only=True)
class Context:
    """What an algorithm works on: the buckets of one model, its optimizer, the other workers, and
    its own state.

    `step` counts the optimizer's steps, and one for each backward pass by whose gradients another
    optimizer has stepped; `backwards` the backward passes before this one in which workers have met
    since the last step. `state` is what `Algorithm.init` returned; a checkpoint holds it. An
    algorithm changes what `state` holds, and assigns to nothing here: every moment is given a
    context of its own. `background` is there for an algorithm that `uses_background`.
    """

    buckets: Sequence[Bucket]
    communicator: Communicator
    optimizer: Optimizer
    state: Any = field(default=None)
    step: int = 0
    backwards: int = 0
    background: Background | None = None


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One system relaxation. Subclasses are their own configuration and override the moments they
    need.

    The engine calls every moment on a communication lane, a thread beside the worker's compute, in
    the same order on every worker: a method may block in a collective. Buckets may be on two lanes
    at the same time, unless `on_forward` is overridden too; other moments never overlap. A moment
    that is not overridden costs nothing.
    """

    family: ClassVar[str] = "other"
    """What is relaxed, in a word or two: figures draw a family in one hue. A property where the
    options of a class decide it.
    """

    dtypes: ClassVar[tuple[torch.dtype, ...]] = (*REAL_DTYPES, torch.complex64, torch.complex128)
    """Of the parameters that it trains; a compressor among its fields may take fewer. A property
    where the options of a class decide it.
    """

    workers_agree: ClassVar[bool] = True
    """Whether all workers hold equal weights after every step."""

    gradients_agree: ClassVar[bool] = False
    """Whether workers agree because all have equal gradients when the optimizer steps, and nothing
    else changes weights. One optimizer step can then serve all simulated workers.
    """

    depends_on_timing: ClassVar[bool] = False
    """Whether the network's and the workers' speed changes what is computed, not only when."""

    depends_on_buckets: ClassVar[bool] = True
    """Whether the values depend on which bucket a parameter is in, apart from the order of sums.
    They do if codes are of chunks. False promises that every element, or every parameter, is
    treated by itself, and that `move_state` moves the state. A property where options decide it.
    """

    all_reduces: ClassVar[bool] = True
    """Whether it all-reduces after its early steps, if not hierarchical: then the pattern of that
    matters to its time.
    """

    uses_background: ClassVar[bool] = False
    """Whether it does something that no step waits for."""

    is_simulatable: ClassVar[bool] = True
    """Whether simulated workers can train by it: code that brings its own communication cannot."""

    keeps_weights: ClassVar[bool] = False
    """Whether its state holds a copy of the weights. If a script loads other weights, the
    difference would look like training. A property where options decide it.
    """

    @property
    def takes_one_backward(self) -> bool:
        """Whether two backward passes in one step, outside of `no_sync`, would give another result
        than one pass over both micro-batches.
        """
        return False

    @property
    def keeps_unsent(self) -> bool:
        """Whether a backward pass keeps a part of its gradients for later steps, even if the
        averaged gradients are thrown away.
        """
        return False

    @property
    def may_read_late(self) -> bool:
        """Whether it may read a step's gradients in buckets after the step has ended: before the
        next backward pass, or beside it.
        """
        return self.uses_background or type(self).on_forward is not Algorithm.on_forward

    @property
    def is_resumable(self) -> bool:
        """Whether a checkpoint holds all of its state."""
        return True

    @property
    def may_have_streams(self) -> bool:
        """Whether it communicates by the communicator it is given, which may have several."""
        return True

    @property
    def needs_nodes(self) -> bool:
        """Whether it averages within nodes first, so that the network must have some."""
        return False

    @property
    def only_averages(self) -> bool:
        """Whether a bucket's job is one all-reduce and copies, the same in every torch mode. The
        thread that would wait for the job may then do it.
        """
        return False

    @property
    def own_bucket_bytes(self) -> int | None:
        """The size of its own buckets, bytes; None: whatever the engine is given."""
        return None

    def counterpart(self, buffer_bytes: Sequence[int] = ()) -> "Algorithm | None":
        """The algorithm here that does the same operations, for predictions; None: unknown.
        `buffer_bytes` has the model's buffers, the sum of each type.
        """
        return self

    @property
    def num_early_steps(self) -> int:
        """How many steps at the beginning of training do other work than the later ones."""
        return 0

    @property
    def steps_per_round(self) -> int:
        """After how many steps its work repeats, so that their mean says what a step takes."""
        return 1

    def meets_in_backward(self, step: int) -> bool:
        """Whether `on_bucket_ready` or `on_backward_end`, where it has any, must be called before
        step number `step`. No: that step takes each worker's own gradients as they are.
        """
        return True

    def check(self, world_size: int, optimizer: Optimizer) -> None:
        """Raise `ValueError` where it cannot train so many workers, or by this optimizer.

        Called before anything is started, and again by the engine.
        """

    def check_parameter(self, parameter: nn.Parameter) -> None:
        """Raise `ValueError` where it cannot train this parameter. The engine puts the parameter's
        name before the message. The message names what is not supported, then says what to do.

        The engine calls it for every trainable parameter before anything is started.
        """
        _check_dtype(parameter.dtype, type(self).__name__, self.dtypes)
        for compressor in self._compressors():
            _check_dtype(parameter.dtype, type(compressor).__name__, compressor.dtypes)

    def check_shards(self) -> None:
        """Raise `ValueError` where it cannot train a model of which each process holds a shard: it
        looks at whole matrices or norms, or would treat the shards of a replica unequally.
        """

    def load(self, device: torch.device | str) -> None:
        """Load or compile the kernels of the compressors among its fields, so that no step has to.

        The engine calls it. Workers that are forked share what was loaded for the CPU before.
        """
        for compressor in self._compressors():
            compressor.load(device)

    def init(self, context: Context) -> Any:
        """Make the state; weights are equal on all workers by now."""
        return None

    def replaces_weights(self, context: Context) -> bool:
        """Whether the averages that were started in the forward pass replace the weights when this
        backward pass ends.
        """
        return False

    def move_state(self, context: Context, move: Move) -> Any:
        """The context's state, for the same parameters in the buckets `move.new`: bit for bit, and
        without communication. Asked for where it does not depend on buckets.
        """
        return context.state

    def skip_to(self, context: Context) -> None:
        """The next step is `context.step`, as if the earlier ones had been taken: what the state
        counts by itself follows.
        """

    def on_forward(self, context: Context) -> None:
        """Forward begins. Weights may travel while forward and backward compute."""

    def on_bucket_ready(self, context: Context, bucket: Bucket) -> None:
        """One bucket's gradients are final on this worker; the rest of backward goes on."""

    def on_backward_end(self, context: Context) -> None:
        """All gradients are final and all buckets have been launched; the optimizer is next."""

    def on_left_out(self, context: Context) -> None:
        """A gradient has overflowed on some worker, and all workers leave this step out: neither
        `on_backward_end` nor `on_step_end` follows on this backward pass.

        Not a collective call, and on the caller's thread; no lane has work.
        """

    def check_gradients(self, context: Context) -> None:
        """Before `on_step_begin`, on the caller's thread: raise `ValueError` where the user has
        done to the gradients since backward what cannot be followed any more.
        """

    def on_step_begin(self, context: Context) -> None:
        """The optimizer's step begins, after all that the user did to the gradients."""

    def on_step_end(self, context: Context) -> None:
        """The optimizer has updated the weights."""

    def on_pause(self, context: Context) -> None:
        """Training stands still: `consensus`, a checkpoint or the end is next. What goes on in the
        background ends here; workers may have done different numbers of steps. The app's own
        evaluations look at the weights as they are.
        """

    def on_optimizer_save(self, context: Context) -> None:
        """`optimizer.state_dict()` begins: what the algorithm has taken over from the optimizer
        must be in `optimizer.state`, in its own format.

        Like the next two not a collective call, and on the caller's thread; no lane has work.
        """

    def on_optimizer_saved(self, context: Context) -> None:
        """`optimizer.state_dict()` is done: what was lent to it may leave `optimizer.state`."""

    def on_optimizer_loaded(self, context: Context) -> None:
        """`optimizer.load_state_dict()` is done: training goes on from what was loaded."""

    def on_close(self, context: Context) -> None:
        """Training by this algorithm ends: the optimizer goes on alone, with what this gives back.

        Not a collective call, and on the caller's thread.
        """

    def _compressors(self) -> list[Compressor]:
        values = [getattr(self, own.name) for own in fields(self)]
        return [value for value in values if isinstance(value, Compressor)]


@dataclass(frozen=True, kw_only=True)
class Hierarchical(Algorithm):
    """An algorithm that can average in two levels.

    Args:
        hierarchical: workers of a node average first, and one of each node meets the other nodes.
    """

    hierarchical: bool = False

    @property
    def needs_nodes(self) -> bool:
        """Whether nodes must be known: only where it is hierarchical."""
        return self.hierarchical


def acts_at(algorithm: Algorithm, moment: str) -> bool:
    """Whether it does anything at `moment`, the name of a method of `Algorithm`."""
    return getattr(type(algorithm), moment) is not getattr(Algorithm, moment)


def _check_dtype(dtype: torch.dtype, taker: str, taken: Sequence[torch.dtype]) -> None:
    if dtype in taken:
        return
    *most, last = (str(known).removeprefix("torch.") for known in taken)
    remedy = "convert it"
    if dtype.is_complex:
        remedy = "keep its real and imaginary parts as real parameters, or choose AllReduce()"
    raise ValueError(
        f"{str(dtype).removeprefix('torch.')} is not supported by {taker}, which takes "
        f"{', '.join(most)} and {last}: {remedy}"
    )
