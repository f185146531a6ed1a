"""What a step finds of the backward passes before it."""

import pytest

from bagua_algos.engine.script.accumulation import Accumulation

LOCAL, MET = Accumulation.note_local, Accumulation.note_synchronized


@pytest.mark.parametrize("is_needed", [False, True])
@pytest.mark.parametrize(
    ("passes", "is_next"), [([], False), ([MET], True), ([LOCAL, MET], True), ([MET, MET], True)]
)
def test_a_step_uses_up_what_there_was_before_it(passes, is_next, is_needed):
    accumulation = Accumulation(is_needed=is_needed)
    for _ in range(2):
        for note in passes:
            note(accumulation)
        assert accumulation.is_step_next == is_next
        assert accumulation.check_step() == bool(passes)
        assert accumulation.is_step_next == is_next, "an error may break the step off"
        accumulation.note_step()
        assert not accumulation.is_step_next
        assert not accumulation.check_step(), "nothing is new since the last step"


def test_gradients_of_one_worker_alone_are_refused_where_the_algorithm_needs_all():
    for passes in ([LOCAL], [MET, LOCAL]):
        needed, free = Accumulation(is_needed=True), Accumulation(is_needed=False)
        for note in passes:
            note(needed), note(free)
        assert needed.is_step_next == (MET in passes)
        with pytest.raises(ValueError, match="all accumulated within no_sync"):
            needed.check_step()
        assert free.check_step()
        free.note_step()
        assert not free.is_step_next


@pytest.mark.parametrize("note", [LOCAL, MET, Accumulation.note_step])
def test_an_algorithm_acts_once_where_a_step_begins(note):
    accumulation = Accumulation(is_needed=True)
    assert not accumulation.has_acted
    accumulation.note_acted()
    assert accumulation.has_acted
    note(accumulation)
    assert not accumulation.has_acted


OWN, OTHERS = False, True


@pytest.mark.parametrize(
    ("steps", "counted"),
    [
        ([OWN], 1),
        ([OTHERS], 1),
        ([OWN, OWN], 2),
        ([OTHERS, OTHERS], 1),
        ([OWN, OTHERS], 1),
        ([OTHERS, OWN, OTHERS], 1),
    ],
)
def test_what_other_optimizers_take_beside_it_is_one_step_a_pass(steps, counted):
    accumulation = Accumulation(is_needed=True)
    assert not accumulation.is_new_step(is_others=True), "of no pass"
    for _ in range(2):
        assert not accumulation.begin_pass(), "of another step"
        accumulation.note_synchronized()
        assert accumulation.begin_pass(), "of the same step"
        accumulation.note_synchronized()
        is_new = [accumulation.is_new_step(is_others=is_others) for is_others in steps]
        assert is_new == [number < counted for number in range(len(steps))]


def test_the_first_gradient_of_one_worker_after_a_meeting_is_told():
    accumulation = Accumulation(is_needed=True)
    assert [accumulation.note_local() for _ in range(2)] == [False, False]
    accumulation.note_synchronized()
    assert [accumulation.note_local() for _ in range(2)] == [True, False]
    accumulation.note_synchronized()
    assert accumulation.is_step_next
    accumulation.note_step()
    assert not accumulation.note_local()
