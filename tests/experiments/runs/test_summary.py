import json

import pytest

from experiments.runs.summary import Summary, read_summary, told_workers, with_workers_since

ONE, TWO = Summary(algo="allreduce", workers=1), Summary(algo="allreduce", workers=2)


def test_the_number_of_workers_over_time():
    assert with_workers_since(TWO, TWO, 40).workers_over_time is None
    lost = with_workers_since(ONE, TWO, 40)
    assert told_workers(lost.workers_over_time) == "2 workers, 1 after step 40"
    back = with_workers_since(TWO, lost, 60)
    assert told_workers(back.workers_over_time) == "2 workers, 1 after step 40, 2 after step 60"
    # What was done after the checkpoint that it goes on from does not count.
    assert with_workers_since(TWO, back, 40).workers_over_time is None
    again = with_workers_since(ONE, back, 50)
    assert told_workers(again.workers_over_time) == "2 workers, 1 after step 40"


def test_a_loss_of_workers_after_the_first_step():
    lost = with_workers_since(ONE, TWO, 1)
    changes = [{"after_step": 0, "workers": 2}, {"after_step": 1, "workers": 1}]
    assert lost.workers_over_time == changes


@pytest.mark.parametrize(("now", "before"), [(2, None), (None, 2), (None, None)])
def test_a_number_of_workers_that_is_not_known_is_no_change(now, before):
    summary = Summary(algo="allreduce", workers=now)
    earlier = Summary(algo="allreduce", workers=before)
    assert with_workers_since(summary, earlier, 40) == summary


def test_a_strangers_number_of_workers_is_no_summary(tmp_path):
    record = {"algo": "allreduce", "status": "completed", "workers_over_time": [1, 2]}
    (tmp_path / "summary.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match="no list of after_step and workers"):
        read_summary(tmp_path)
