"""The programs that hold relaxlab against measurements, records and GPUs: `experiments.NAME`."""
