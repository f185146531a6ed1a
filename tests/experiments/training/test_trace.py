from bagua_algos.communication.communicator import Operation
from experiments.training.trace import TraceRecorder

MEAN = Operation(name="all_reduce_mean", num_bytes=8, ranks=(0, 1), seconds=1e-9)


def names_of(recorder):
    return [event.name for event in recorder.events]


def test_between_the_operations_of_a_job_are_its_kernels():
    recorder = TraceRecorder(0)
    recorder.on_job("bucket_ready", 0)
    recorder.on_operation(MEAN)
    recorder.on_operation(MEAN)
    recorder.on_job_end("bucket_ready", 0)
    assert names_of(recorder) == [*("kernel", "all_reduce_mean") * 2, "kernel"]


def test_between_operations_outside_of_jobs_is_nothing():
    recorder = TraceRecorder(0)
    recorder.on_job("bucket_ready", 0)
    recorder.on_job_end("bucket_ready", 0)
    for _ in range(2):  # such as those of an evaluation
        recorder.on_operation(MEAN)
    assert names_of(recorder) == ["kernel", "all_reduce_mean", "all_reduce_mean"]
