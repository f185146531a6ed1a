"""What no run can have: told before torch is imported, which takes seconds."""
