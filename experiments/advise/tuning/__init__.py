"""Which values of an algorithm's, optimizer's and engine's fields are the best: Optuna's search."""
