import os
from collections.abc import Iterator
from unittest import mock

import pytest

from bagua_algos import ProcessGroupCommunicator
from tests.bagua_algos.trainers import plain_loop


@pytest.fixture
def launched(one_worker) -> Iterator[None]:
    """As torchrun starts a worker, which is the only one, in this process."""
    with mock.patch.dict(os.environ):
        plain_loop.as_torchrun_does(ProcessGroupCommunicator())
        yield
