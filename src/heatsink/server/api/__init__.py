"""HTTP API v1: one table of routes, from which both the routing and the OpenAPI document come."""
