"""What the backward passes since the last step have left: gradients of all workers, or of one."""

from enum import Enum, auto


class _Gradients(Enum):
    NONE = auto()
    LOCAL = auto()
    SYNCHRONIZED = auto()


class Accumulation:
    """Notices a step that begins without a backward pass in which workers met.

    Args:
        is_needed: whether the algorithm acts on gradients, so that every step needs such a pass.
    """

    has_acted: bool = False
    """Whether the algorithm has acted where a step began that was broken off since, by an error: it
    must not act on the same gradients again, nor without the other workers.
    """

    def __init__(self, *, is_needed: bool) -> None:
        self._is_needed = is_needed
        self._gradients = _Gradients.NONE
        self._has_met = False
        self._is_counted, self._is_others = True, False

    @property
    def is_step_next(self) -> bool:
        """Whether workers have met in a backward pass, and no step has followed yet."""
        return self._has_met

    def note_local(self) -> bool:
        """A gradient has accumulated within `no_sync`: returns whether it is the first one since a
        backward pass in which workers met, and no step has followed yet.
        """
        before, self._gradients, self.has_acted = self._gradients, _Gradients.LOCAL, False
        return before is _Gradients.SYNCHRONIZED

    def note_synchronized(self) -> None:
        """A backward pass outside of `no_sync` has ended."""
        self._gradients, self._has_met, self.has_acted = _Gradients.SYNCHRONIZED, True, False

    def begin_pass(self) -> bool:
        """A backward pass begins in which workers meet: returns whether they have met in another
        one since the last step of any optimizer.
        """
        is_further = self._has_met and not self._is_counted
        self._is_counted = False
        return is_further

    def is_new_step(self, *, is_others: bool) -> bool:
        """The distributed optimizer has taken a step, or another one, by gradients in which workers
        have met: returns whether it is to be counted. Of all that steps after one pass, only one is
        where another optimizer is among them.
        """
        is_new = not self._is_counted or not (is_others or self._is_others)
        if is_new:
            self._is_counted, self._is_others = True, is_others
        return is_new

    def check_step(self) -> bool:
        """A step begins: returns whether there was any backward pass since the last one.

        Raises `ValueError` where all were within `no_sync`, and the algorithm acts on gradients.
        """
        if self._gradients is _Gradients.LOCAL and self._is_needed:
            raise ValueError(
                "the step's gradients were all accumulated within no_sync(), so that each worker "
                "has its own: leave the last micro-batch's backward out of no_sync()"
            )
        return self._gradients is not _Gradients.NONE

    def note_acted(self) -> None:
        """The algorithm has acted where a step begins."""
        self.has_acted = True

    def note_step(self) -> None:
        """A step has ended. One that was broken off by an error has not: it may be tried again."""
        self._gradients, self._has_met, self.has_acted = _Gradients.NONE, False, False
