"""The operations of the API, one module per family. Each takes the database and a request."""
