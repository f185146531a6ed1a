"""An algorithm hung on an unmodified model and optimizer."""
