"""What is drawn: styles, panels, curves and bars."""
