"""The programs that print how fast something is: `python -m experiments.NAME` is NAME.py here."""
