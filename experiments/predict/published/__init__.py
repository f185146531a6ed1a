"""Tables that others have published, beside predictions of the same."""
