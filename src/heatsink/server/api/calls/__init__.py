"""What the routes do."""
