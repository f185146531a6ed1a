"""Where a training lies between compute, bytes and latency, and which algorithm is first there."""
