"""Tables, plots, a notebook and a page: `python -m experiments.report DIR`."""
