"""QAdam: Adam that learns its second moment, then freezes it and sends momenta in few bits.

    k < warmup_steps    torch's own Adam or AdamW on mean_j g_j
    after               m_j <- b1 m + (1 - b1) g_j          on worker j, per bucket during backward
                        m   <- C_LP_S average of m_j
                        x   <- x - lr m / (1 - b1^k) / (sqrt(v / (1 - b2^K)) + eps)

K, v: Adam's count of steps of a parameter and second moment at the switch. Weight decay is Adam's
(added to g_j) or AdamW's (x <- (1 - lr wd) x). With a 1-bit sign compressor and error feedback it
is 1-bit Adam.

A sign code gives each element of a chunk a momentum of one size, and where v is far below the
chunk's (a bias before BatchNorm has gradients of rounding alone) x is thrown about. `precondition`
cures it: what is averaged, in place of m, is u <- b1 u + (1 - b1) g_j / (sqrt(v / (1 - b2^K)) +
eps), the same rule but for the codes' errors, which are then of one size in steps of x. It does not
suit MinMaxUInt8: a few large u widen the range of a chunk.

Papers: Tang et al., "1-bit Adam", arXiv 2102.02888, algorithm 1; the 8-bit form without error
feedback: Gan et al., "BAGUA", arXiv 2107.01499. Differs from the papers: bias corrections are
Adam's, and the correction of v is frozen with v; each parameter group has its own lr, betas, eps
and weight decay, as they are at the step (eps: at the switch); `precondition`; an element whose
gradient was zero all through warm-up rests, where the paper would divide by eps.

A parameter that no worker uses in a step after the switch moves on by its momentum and decay, as if
its gradient were zero: those of one bucket share codes. One without any gradient in warm-up rests,
and a warning tells of it; the optimizer's state_dict has it as of no step, for it to rest when that
is loaded.

Every backward of a step makes m anew, of the gradients accumulated so far and of the m before the
step; a step without a backward changes nothing.

After the switch the user's optimizer.step() finds no gradients and changes nothing. Backward leaves
this worker's own gradients behind. No change of them after backward, such as clipping, has any
effect, and one that was taken away (`p.grad = None`, `zero_grad()`) is refused. Adam's moments have
moved from the optimizer to the algorithm's state, and return when training ends.
optimizer.state_dict() has them too, in the parameters' type: v such that Adam's own correction
makes v / (1 - b2^K) of it. Loading it sets m and v, equal but for rounding (for float32, a few
units in the last place), and residuals of zero; `bagua_algos.state_dict` has all of the state, bit
for bit. Loaded moments of which each has taken `warmup_steps` steps or more leave no warm-up to do;
of those in warm-up the rest is left, whatever parameters have no moments yet. After it one without,
such as a layer that was thawed since, begins the warm-up anew.
"""

import copy
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from bagua_algos import adam_state
from bagua_algos.checkpoint import kept
from bagua_algos.communication.hierarchy import levels
from bagua_algos.communication.primitives import (
    Residuals,
    all_reduce_mean_,
    compressed_all_reduce_mean_,
)
from bagua_algos.compressors.compressor import REAL_DTYPES, Compressor, Draw, warn_of_bias
from bagua_algos.compressors.minmax_uint8 import MinMaxUInt8
from bagua_algos.engine.algorithm import Context, Hierarchical
from bagua_algos.engine.bucket import Bucket
from bagua_algos.engine.parameter_groups import group_of, stretches
from bagua_algos.settings import check_parts, check_whole


@kept
@dataclass(frozen=True, eq=False)
class Momentum:
    """What steps change of one bucket, in float32 at least: `m` (or u) `[w, n]`, equal on all
    workers, and what its codes have left out.
    """

    m: Tensor
    residuals: Residuals | None


@kept
@dataclass(kw_only=True)
class Moments:
    """One bucket after the switch: the `momentum`, and the frozen `denominator` sqrt(v / (1 -
    b2^K)) + eps, `[w, n]`, infinite where v is 0.

    `resting` are the numbers of the bucket's parameters without any gradient before the switch:
    Adam leaves such as they are. `following` is what backward makes of the momentum, if it
    `has_followed`; else a storage for it.
    """

    momentum: Momentum
    denominator: Tensor
    resting: tuple[int, ...] = ()
    following: Momentum | None = None
    has_followed: bool = False

    def begin_following(self) -> Momentum:
        """Another momentum to write to, with residuals as they are at the step's beginning."""
        now = self.momentum
        if self.following is None:
            self.following = copy.deepcopy(now)
        elif now.residuals is not None and self.following.residuals is not None:
            self.following.residuals.worker.copy_(now.residuals.worker)
            self.following.residuals.owner.copy_(now.residuals.owner)
        return self.following

    def follow(self) -> None:
        """Take what backward has made; the momentum until now becomes the storage."""
        assert self.following is not None and self.has_followed, "a backward launches all buckets"
        self.momentum, self.following = self.following, self.momentum
        self.has_followed = False

    def __getstate__(self) -> dict[str, Any]:
        """All but a mere storage: a checkpoint does not need it."""
        return self.__dict__ | ({} if self.has_followed else {"following": None})


@kept
@dataclass(kw_only=True)
class QAdamState:
    """`moments`, one a bucket, are empty during warm-up; `num_steps` is Adam's count after it.
    `head_start` is how far the least count of a parameter was ahead of this training's own.
    """

    moments: list[Moments]
    num_steps: int = 0
    head_start: int = 0


@dataclass(frozen=True, kw_only=True)
class QAdam(Hierarchical):
    """Adam with compressed momenta after `warmup_steps`, on the user's own `torch.optim.Adam` or
    `AdamW`.

    Args:
        warmup_steps: steps of Adam on averaged gradients, before anything is compressed. They
            should last until the second moments are steady: 15 to 25 % of all steps.
        compressor: the code in which momenta travel after the warm-up.
        error_feedback: what a code leaves out is added to the momenta of the next step.
        precondition: whether momenta are divided by Adam's denominator before they are encoded.
            It helps sign codes where second moments differ much, as before BatchNorm.

    Raises:
        ValueError: fewer than one step of warm-up, which would leave the second moment zero, or a
            number that is not whole.
    """

    family = "compressed Adam"
    dtypes = REAL_DTYPES
    all_reduces = False

    warmup_steps: int = 200
    compressor: Compressor = field(default_factory=MinMaxUInt8)
    error_feedback: bool = False
    precondition: bool = False

    def __post_init__(self) -> None:
        check_parts(self)
        what = "warmup_steps, in which Adam learns its second moment,"
        check_whole(what, self.warmup_steps, least=1)
        warn_of_bias(self.compressor, self.error_feedback)
        if self.precondition and isinstance(self.compressor, MinMaxUInt8):
            warnings.warn(
                "MinMaxUInt8 spaces its levels by a chunk's extremes, and precondition=true makes "
                "them extreme: set precondition=false, which is for codes of signs",
                stacklevel=3,
            )

    @property
    def num_early_steps(self) -> int:
        """The number of warm-up steps, in which Adam runs on averaged gradients."""
        return self.warmup_steps

    def check(self, world_size: int, optimizer: Optimizer) -> None:
        """Raise `ValueError` unless the optimizer is Adam or AdamW with supported options."""
        if type(optimizer) not in (Adam, AdamW):
            raise ValueError(
                f"QAdam continues torch.optim.Adam or AdamW, got {type(optimizer).__name__}: "
                "another optimizer has other moments, or none"
            )
        for group in optimizer.param_groups:
            for option, reason in {
                "amsgrad": "its second moment is a running maximum, which is not frozen",
                "maximize": "it ascends; negate the loss instead",
            }.items():
                if group[option]:
                    raise ValueError(f"QAdam does not support {option}=True: {reason}")

    def init(self, context: Context) -> QAdamState:
        """No moments yet, or those of an Adam that has been warmed up before; `ValueError` for a
        weight that no optimizer has.
        """
        levels(context.communicator, self.hierarchical)  # raises
        for bucket in context.buckets:
            stretches(bucket, context.optimizer)  # raises
        state = QAdamState(moments=[])
        self._begin(context, state)
        return state

    def on_bucket_ready(self, context: Context, bucket: Bucket) -> None:
        """Average the bucket's gradients; after the switch its momenta, by their codes."""
        state: QAdamState = context.state
        if not state.moments:
            all_reduce_mean_(bucket.gradients, context.communicator, self.hierarchical)
            return
        moments = state.moments[bucket.index]
        following = moments.begin_following()
        for stretch in stretches(bucket, context.optimizer):
            options, columns = stretch.options(context.optimizer), stretch.columns
            gradient = bucket.gradients[columns].to(following.m.dtype)
            if not options["decoupled_weight_decay"]:
                gradient = gradient.add(bucket.weights[columns], alpha=options["weight_decay"])
            if self.precondition:
                gradient = gradient / moments.denominator[columns]
            weight = 1 - float(options["betas"][0])
            torch.lerp(moments.momentum.m[columns], gradient, weight, out=following.m[columns])
        compressed_all_reduce_mean_(
            following.m,
            bucket.numel,
            context.communicator,
            self.compressor,
            following.residuals,
            Draw(ranks=context.communicator.ranks, step=context.step, bucket=bucket.index),
            self.hierarchical,
        )
        moments.has_followed = True

    def check_gradients(self, context: Context) -> None:
        """Raise `ValueError` where a gradient was taken away since backward, which after the switch
        has used it: plain Adam would leave that parameter as it is.
        """
        for bucket, moments in zip(context.buckets, context.state.moments, strict=False):
            if not moments.has_followed or all(p.grad is not None for p in bucket.parameters):
                continue
            for parameter, view in zip(bucket.parameters, bucket.gradient_views(), strict=True):
                if parameter.grad is None and view.any():  # of zeros where no worker has used it
                    raise ValueError(
                        f"a gradient of shape {tuple(parameter.shape)} was taken away between "
                        "backward() and the step, and QAdam's momenta have travelled in backward: "
                        "let a hook on the gradient return zeros, or freeze the parameter before "
                        "distribute(), and call zero_grad() after the step or before backward()"
                    )

    def on_step_begin(self, context: Context) -> None:
        """After the switch, leave nothing for the user's optimizer to do."""
        if context.state.moments:
            for bucket in context.buckets:
                for parameter in bucket.parameters:
                    parameter.grad = None

    def on_step_end(self, context: Context) -> None:
        """Update the weights; in the last step of warm-up, switch."""
        state: QAdamState = context.state
        if any(moments.has_followed for moments in state.moments):
            state.num_steps += 1
            for bucket in context.buckets:
                self._update_weights(context, bucket)
        elif not state.moments and context.step + 1 + state.head_start >= self.warmup_steps:
            self._switch(context, state)

    def on_optimizer_save(self, context: Context) -> None:
        """Lend Adam's moments to the user's optimizer."""
        adam_state.give(context.optimizer, self._adam_states(context))

    def on_optimizer_saved(self, context: Context) -> None:
        """Take them back."""
        if context.state.moments:
            adam_state.drop(_parameters(context), context.optimizer)

    def on_optimizer_loaded(self, context: Context) -> None:
        """Go on from the loaded moments, unless they are the own ones, as this gave them."""
        state: QAdamState = context.state
        self.check(context.communicator.world_size, context.optimizer)
        if state.moments and adam_state.holds(context.optimizer, self._adam_states(context)):
            adam_state.drop(_parameters(context), context.optimizer)
        else:
            self._begin(context, state)

    def on_close(self, context: Context) -> None:
        """Give Adam's moments back to the user's optimizer."""
        adam_state.give(context.optimizer, self._adam_states(context))
        context.state.moments = []

    def _begin(self, context: Context, state: QAdamState) -> None:
        """Warm up what is left of it, after the steps that Adam's moments have taken: the least of
        all that have taken any. Where those are enough, one that the optimizer does not know was
        thawed since, and needs a warm-up; one that it knows rests.
        """
        optimizer, parameters = context.optimizer, _parameters(context)
        counts = (adam_state.num_steps(p, optimizer) for p in parameters)
        steps = min((count for count in counts if count), default=0)
        if steps >= self.warmup_steps:
            is_complete = all(adam_state.is_known(p, optimizer) for p in parameters)
            steps = steps if is_complete else 0
        state.moments, state.head_start = [], steps - context.step
        if steps >= self.warmup_steps:
            self._switch(context, state)

    def _adam_states(self, context: Context) -> dict[nn.Parameter, adam_state.ParameterState]:
        """The moments as Adam keeps them; none during warm-up, when it does so itself."""
        state: QAdamState = context.state
        states = {}
        for bucket, moments in zip(context.buckets, state.moments, strict=False):
            m, v = torch.zeros_like(moments.momentum.m), torch.zeros_like(moments.momentum.m)
            smallest = torch.finfo(v.dtype).tiny
            for stretch in stretches(bucket, context.optimizer):
                options, columns = stretch.options(context.optimizer), stretch.columns
                rests = moments.denominator[columns].isinf()
                denominator = moments.denominator[columns].masked_fill(rests, options["eps"])
                m[columns] = moments.momentum.m[columns] * (denominator if self.precondition else 1)
                # As Adam will correct it: by all its steps, where v was frozen at the switch.
                correction = 1 - float(options["betas"][1]) ** state.num_steps
                squares = (denominator - options["eps"]).square() * correction
                v[columns] = squares.clamp_min(smallest).masked_fill(rests, 0)
            states |= adam_state.states_of(
                bucket, context.optimizer, state.num_steps, m, v, moments.resting
            )
        return states

    def _update_weights(self, context: Context, bucket: Bucket) -> None:
        state: QAdamState = context.state
        moments = state.moments[bucket.index]
        moments.follow()
        views = bucket.views(bucket.weights) if moments.resting else []
        resting = [views[number] for number in moments.resting]
        before = [weights.clone() for weights in resting]
        for stretch in stretches(bucket, context.optimizer):
            options, columns = stretch.options(context.optimizer), stretch.columns
            lr, beta1 = float(options["lr"]), float(options["betas"][0])
            weights, m, denominator = (
                x[columns] for x in (bucket.weights, moments.momentum.m, moments.denominator)
            )
            if options["decoupled_weight_decay"]:
                weights.mul_(1 - lr * options["weight_decay"])
            if self.precondition:
                denominator = torch.where(denominator.isinf(), denominator, 1.0)
            weights.addcdiv_(m, denominator, value=-lr / (1 - beta1**state.num_steps))
        for weights, own in zip(resting, before, strict=True):
            weights.copy_(own)

    def _switch(self, context: Context, state: QAdamState) -> None:
        """Take Adam's moments over from the user's optimizer."""
        optimizer, parameters = context.optimizer, _parameters(context)
        state.num_steps = max(adam_state.num_steps(p, optimizer) for p in parameters)
        for bucket in context.buckets:
            m, denominator = _frozen(bucket, optimizer, state.num_steps)
            residuals = None
            if self.error_feedback:
                residuals = Residuals.zeros_like(m, context.communicator, self.hierarchical)
            momentum = Momentum(m / denominator if self.precondition else m, residuals)
            # Without any step, as in predictions, nothing is known of parameters.
            numbered = enumerate(bucket.parameters if state.num_steps else ())
            resting = tuple(i for i, p in numbered if not adam_state.num_steps(p, optimizer))
            state.moments.append(
                Moments(momentum=momentum, denominator=denominator, resting=resting)
            )
        adam_state.drop(parameters, optimizer)
        _warn_of_resting(context.buckets, state.moments)


def _frozen(bucket: Bucket, optimizer: Optimizer, num_steps: int) -> tuple[Tensor, Tensor]:
    """Adam's m and sqrt(v / (1 - b2^K)) + eps, `[w, n]`, the latter infinite where v is 0.

    K is each parameter's own count of steps, and m such that the correction by `num_steps` makes of
    it what its own would.
    """
    m, v = adam_state.flat_moments(bucket, optimizer)
    denominator, groups = v.sqrt().masked_fill_(v == 0, math.inf), group_of(optimizer)
    parts = zip(bucket.parameters, bucket.views(m), bucket.views(denominator), strict=True)
    for parameter, own_m, own_denominator in parts:
        own_steps = adam_state.num_steps(parameter, optimizer)
        if own_steps:
            beta1, beta2 = map(float, groups[parameter]["betas"])
            own_m.mul_((1 - beta1**num_steps) / (1 - beta1**own_steps))
            own_denominator.div_(math.sqrt(1 - beta2**own_steps)).add_(groups[parameter]["eps"])
    return m, denominator


def _warn_of_resting(buckets: Sequence[Bucket], moments: Sequence[Moments]) -> None:
    """Of parameters that no momentum can change any more."""
    pairs = zip(buckets, moments, strict=True)
    views = [view for bucket, own in pairs for view in bucket.views(own.denominator)]
    known = [view for view in views if view.numel() and not view.is_meta]
    num_resting = sum(bool(view.isinf().all()) for view in known)
    if num_resting:
        warnings.warn(
            f"{num_resting} parameters have had no gradient but zero in QAdam's warm-up, and rest "
            "from here on: choose warmup_steps such that it uses them, or freeze them before "
            "distribute()",
            stacklevel=2,
        )


def _parameters(context: Context) -> list[nn.Parameter]:
    return [p for bucket in context.buckets for p in bucket.parameters]
