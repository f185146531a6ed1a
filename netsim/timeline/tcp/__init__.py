"""What TCP makes of a link: throughput under loss, windows, queues that overflow."""
