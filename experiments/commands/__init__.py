"""The programs: `python -m experiments.NAME` is NAME.py here, where no room has that name."""
