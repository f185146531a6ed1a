"""What relaxlab adds to Hydra, which takes plugins from this namespace alone."""
