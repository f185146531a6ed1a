"""What is drawn: styles, columns of panels, curves and dots."""
