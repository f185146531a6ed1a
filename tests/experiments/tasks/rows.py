"""One row a task: how many examples training, validation and test set have."""

ROWS = {
    "fashion_mnist": (55_000, 5_000, 10_000),
    "jane_austen": (27_500, 800, 3_145),
    "mnist5k": (3_500, 500, 1_000),
    "movie_snippets": (8_000, 1_000, 1_072),
    "spoken_digits": (2_000, 500, 500),
}
