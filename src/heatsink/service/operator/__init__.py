"""Commands of operators: they ask a running server over HTTP."""
