"""HTTP API v1: routing and the OpenAPI document come from one table of routes."""
