"""What makes Heatsink at home in other frameworks: each module needs only its own."""
