"""Step times of models that are too large to train here."""
