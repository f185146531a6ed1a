import gc
import weakref

from bagua_algos.engine.script.weak_hook import WeakHook


class Engine:
    def add(self, *numbers):
        return sum(numbers)


def test_a_hook_calls_its_object_as_long_as_that_lives():
    engine = Engine()
    alive, hook = weakref.ref(engine), WeakHook(engine.add, lambda: "gone")
    assert hook(1, 2) == 3 and not hook.is_dead
    del engine
    gc.collect()
    assert alive() is None
    assert hook(1, 2) == "gone" and hook.is_dead
