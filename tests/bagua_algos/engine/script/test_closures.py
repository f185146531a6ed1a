"""When a step begins: at once, or when its closure has returned."""

import pytest

from bagua_algos.engine.script.closures import StepClosure

OPTIMIZER = object()


def before_step(*args, **kwargs):
    """What came of it, and in which order: a step's closure is called, and the step begins."""
    order = []

    def closure():
        order.append("closure")
        return 1.5

    own = [closure if value == "closure" else value for value in args]
    named = {name: closure if value == "closure" else value for name, value in kwargs.items()}
    step = StepClosure(lambda: order.append("begin"))
    return step, step.before_step((OPTIMIZER, *own), named), order


@pytest.mark.parametrize("kwargs", [{}, {"closure": None}, {"grad_scaler": 1}])
@pytest.mark.parametrize("args", [(), (None,), (None, 3)])
def test_without_a_closure_a_step_begins_at_once_with_its_own_arguments(args, kwargs):
    step, changed, order = before_step(*args, **kwargs)
    assert changed is None and order == ["begin"]
    step.after_step()


@pytest.mark.parametrize(
    ("args", "kwargs", "others"),
    [
        (("closure",), {}, ()),
        (("closure", 3), {"grad_scaler": 1}, (3,)),
        ((), {"closure": "closure"}, ()),
        ((), {"closure": "closure", "grad_scaler": 1}, ()),
    ],
)
def test_with_a_closure_it_begins_after_that_and_its_loss_is_returned(args, kwargs, others):
    step, (found, named), order = before_step(*args, **kwargs)
    assert found == (OPTIMIZER, *others) and order == []
    assert named.pop("closure")() == 1.5 and order == ["closure", "begin"]
    assert named == {name: value for name, value in kwargs.items() if name != "closure"}
    step.after_step()


def test_a_closure_is_called_once_a_step():
    step, (_, named), order = before_step("closure")
    with pytest.raises(ValueError, match="has not called its closure"):
        step.after_step()
    named["closure"]()
    with pytest.raises(ValueError, match="calls its closure several times a step"):
        named["closure"]()
    assert order == ["closure", "begin", "closure"]
    step.before_step((OPTIMIZER,), {})
    step.after_step()
    step.before_step((OPTIMIZER, named["closure"]), {})
    with pytest.raises(ValueError, match="has not called its closure"):
        step.after_step()


def test_a_step_whose_beginning_was_not_seen_has_called_no_closure():
    with pytest.raises(ValueError, match="has not called its closure"):
        StepClosure(lambda: None).after_step()
