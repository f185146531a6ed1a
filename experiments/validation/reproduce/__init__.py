"""Every committed table and figure again, from the committed records."""
