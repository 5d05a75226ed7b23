"""The lab: experiments on virtual time with the code that runs in production."""
