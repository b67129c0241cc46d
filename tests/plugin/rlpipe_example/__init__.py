"""A third party's package that adds a reward to rlpipe."""
