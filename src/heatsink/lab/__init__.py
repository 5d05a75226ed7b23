"""The lab: the seed's experiments again, on virtual time, with the code that runs in production."""
