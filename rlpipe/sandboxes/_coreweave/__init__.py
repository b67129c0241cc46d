"""What `rlpipe.sandboxes.coreweave` is made of."""
