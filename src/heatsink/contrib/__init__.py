"""Integrations with frameworks that need a package of their own."""
